// How pages write money, numbers and durations: the formats of `frontend/formats.py`.
const { dataset } = document.documentElement;
const currency = dataset.currency || "USD";
const zone = dataset.zone || "UTC";
const SMALLEST = 0.01; // amounts below it have two significant digits

function amount(units, digits) {
  const text = new Intl.NumberFormat("en-US", { style: "currency", currency, ...digits }).format(units);
  return text.replace(/^([A-Z]{3})\s/, "$1\u00a0");
}

// Units of the currency: `$1,284.10`, and `$0.0031` below a cent.
export function money(units) {
  const small = units !== 0 && Math.abs(units) < SMALLEST;
  return amount(units, small ? { maximumSignificantDigits: 2 } : { minimumFractionDigits: 2, maximumFractionDigits: 2 });
}

// On an axis, where neighbours must differ: `$12.50`, `$0.0004`, `$1.2K`.
export function tick(units, { isMoney = false } = {}) {
  const cents = isMoney && units !== 0 && Math.abs(units) >= SMALLEST;
  const small = cents ? { minimumFractionDigits: 2, maximumFractionDigits: 4 } : { maximumSignificantDigits: 3 };
  const digits = Math.abs(units) < 1000 ? small : { notation: "compact", maximumFractionDigits: 2 };
  return isMoney ? amount(units, digits) : new Intl.NumberFormat("en-US", digits).format(units);
}

export const number = (value) => new Intl.NumberFormat("en-US").format(value);

// To about three significant figures.
export function duration(ms) {
  if (ms < 999.5) return ms < 9.95 ? `${ms.toFixed(2)} ms` : `${Math.round(ms)} ms`;
  if (ms < 99_950) return `${(ms / 1000).toFixed(ms < 9995 ? 2 : 1)} s`;
  const whole = Math.round(ms / 1000);
  return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
}

// `14:31`, in the time zone of the page.
export const clock = new Intl.DateTimeFormat("en-GB", { timeZone: zone, hour: "2-digit", minute: "2-digit" });
