// Everything a page needs, in one bundle: htmx, the islands, the live connection and the keyboard.
import htmx from "htmx.org";
import { Idiomorph } from "idiomorph/htmx";
import { startDrafts } from "./annotate.ts";
import { startCopy } from "./copy.ts";
import { startFilters } from "./filters.ts";
import { startKeyboard } from "./keyboard.ts";
import { startLive } from "./live/live.ts";
import "./live/live-status.ts";
import "./charts/metric-chart.ts";
import { startDialogs } from "./dialogs.ts";
import { startPreferences } from "./preferences.ts";
import { startSession } from "./session.ts";
import { startUpload } from "./upload/upload.ts";

// The content security policy allows neither inline styles nor eval.
htmx.config.includeIndicatorStyles = false;
htmx.config.allowEval = false;
htmx.config.allowScriptTags = false;
htmx.config.selfRequestsOnly = true;
// Back loads the page anew: what htmx would fetch in its place is the fragment that a search is answered with.
htmx.config.historyCacheSize = 0;
htmx.config.refreshOnHistoryMiss = true;
htmx.config.timeout = 20_000;

// What a person ticked or opened stays so: the server, whose answer is morphed into the page, does not know of it.
Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name: string, element: Element) =>
  !(
    (name === "checked" && element.matches("[type=radio], [type=checkbox]")) ||
    (name === "open" && element.matches("details"))
  );

startPreferences();
startDialogs();
startCopy();
startFilters();
startKeyboard();
startDrafts();
startUpload();
startSession();
startLive();
