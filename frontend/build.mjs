// Bundle ts/ and styles/ into static/frontend/. `--watch` rebuilds on every change.
import { rmSync } from "node:fs";
import * as esbuild from "esbuild";

const watch = process.argv.includes("--watch");
const outdir = "static/frontend";

rmSync(outdir, { recursive: true, force: true });
const options = {
  entryPoints: [
    { in: "ts/main.ts", out: "main" },
    // Loaded before the first paint, so that a stored theme never flashes; it must stay tiny.
    { in: "ts/theme.ts", out: "theme" },
    { in: "styles/main.css", out: "main" },
    { in: "styles/admin.css", out: "admin" },
    { in: "styles/mark.svg", out: "mark" },
  ],
  outdir,
  bundle: true,
  format: "iife",
  target: ["chrome123", "firefox128", "safari18"],
  loader: { ".woff2": "file", ".svg": "copy" },
  assetNames: "[name]",
  minify: !watch,
  legalComments: "linked",
  // No source map comment: Django's hashed file names would have to resolve it.
  logLevel: "info",
};

if (watch) {
  await (await esbuild.context(options)).watch();
} else {
  await esbuild.build(options);
}
