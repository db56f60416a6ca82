// Numbers as text, as hpcgnn/report/formats.py writes them.

function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (value === 0 || size >= 100) return Math.round(value).toLocaleString("en-US");
  let digits = 2;
  while (digits < 8 && size < 10 ** (2 - digits)) digits += 1;
  return value.toFixed(size < 10 ? digits : 1);
}

// A short form for axes: no trailing zeros.
function plain(value) {
  return Math.abs(value) >= 10000 ? value.toLocaleString("en-US") : String(Number(value.toPrecision(6)));
}

function inUnits(value, units, write) {
  const size = Math.abs(value);
  const [scale, unit] = units.find(([scale]) => size >= scale) || units[units.length - 1];
  return write(value / scale) + " " + unit;
}

const BYTE_UNITS = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];
const SECOND_UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]];

// A value with its unit: "B" and "s" take the unit that keeps the number short.
function quantity(value, unit, write) {
  const text = write || number;
  if (value === null || value === undefined) return "–";
  if (unit === "B") return value < 1000 ? plain(Number(value.toPrecision(3))) + " B" : inUnits(value, BYTE_UNITS, text);
  if (unit === "s") {
    if (value === 0) return "0 s";
    if (value >= 120) {
      const minutes = Math.floor(value / 60);
      return minutes >= 60 ? Math.floor(minutes / 60) + " h " + minutes % 60 + " min"
        : minutes + " min " + Math.round(value % 60) + " s";
    }
    return inUnits(value, SECOND_UNITS, text);
  }
  return text(value) + (unit ? " " + unit : "");
}
