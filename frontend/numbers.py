"""Numbers as people read them: few digits, a unit, a real minus sign."""

_MINUS = "\N{MINUS SIGN}"
_NONE = "–"


def number(value: float | None) -> str:
    """Three significant digits or so: 0.731, 12.3, 1,204, 2.1e−4."""
    if value is None:
        return _NONE
    magnitude = abs(value)
    if magnitude and (magnitude < 1e-3 or magnitude >= 1e7):
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}".replace("-", _MINUS)
    decimals = 0 if magnitude >= 100 else 1 if magnitude >= 10 else 2 if magnitude >= 1 else 3
    text = f"{value:,.{decimals}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text.replace("-", _MINUS)


def reward(value: float | None) -> str:
    """Two decimals, so that the rewards of a group align; more where two would round to nothing."""
    if value is None:
        return _NONE
    if value and abs(value) < 0.005:
        return number(value)
    return f"{value:,.2f}".replace("-", _MINUS)


def signed(value: float | None) -> str:
    """Like `number`, with a plus sign where there is no minus."""
    if value is None:
        return _NONE
    return number(value) if value <= 0 else f"+{number(value)}"


def groups(number: int) -> str:
    """How many groups, in words."""
    return f"{count(number)} group{'' if number == 1 else 's'}"


def count(value: float | None) -> str:
    """A whole number with thousands separated."""
    return _NONE if value is None else f"{value:,.0f}".replace("-", _MINUS)


def percent(value: float | None) -> str:
    """A share of one as a percentage."""
    if value is None:
        return _NONE
    shown = value * 100
    decimals = 0 if shown >= 10 or shown == 0 else 1
    return f"{shown:.{decimals}f} %"


def duration(seconds: float | None) -> str:
    """Up to two units: 420 ms, 8.2 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None:
        return _NONE
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    for unit_s, unit, part_s, part in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit_s:
            rest = whole % unit_s // part_s
            return f"{whole // unit_s} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"


def age(seconds: float) -> str:
    """One unit, rounded down: what an age needs."""
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)} {unit}"
    return f"{int(seconds)} s"


def size(value: float | None) -> str:
    """Bytes in decimal units."""
    if value is None:
        return _NONE
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= factor:
            return f"{number(value / factor)} {unit}"
    return f"{value:.0f} B"
