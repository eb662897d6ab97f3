// The rules of the fields, as pure functions on text. The vault checks all anew: its
// clock and its word decide.

import { kinds, spans } from "./schemes.js";

/** What is wrong with a field. */
export type Fault = "required" | "incomplete" | "invalid" | "expired";

/** The digits in a text, of any script, in ASCII. */
export function digitsOf(text: string): string {
  return text.replace(/\P{Nd}/gu, "").replace(/[^0-9]/gu, (digit) => {
    // Decimal digits come in runs of ten, from zero to nine: Unicode, section 4.6.
    let value = 0;
    while (/\p{Nd}/u.test(String.fromCodePoint(digit.codePointAt(0)! - value - 1))) value++;
    return String(value % 10);
  });
}

function kindAt(first8: number) {
  let kind = 0;
  for (let i = 0; i < spans.length && spans[i]! <= first8; i += 2) kind = spans[i + 1]!;
  return kinds[kind]!;
}

/** The scheme in which a number begins, or null while it may be one of several. */
export function brandOf(digits: string): string | null {
  const low = Number(digits.slice(0, 8).padEnd(8, "0"));
  const high = Number(digits.slice(0, 8).padEnd(8, "9"));
  const [scheme] = kindAt(low);
  if (scheme === "Unknown" || kindAt(high)[0] !== scheme) return null;
  // A domestic range inside does not keep a scheme from being shown early.
  for (let i = 0; i < spans.length; i += 2) {
    const other = kinds[spans[i + 1]!]![0];
    if (spans[i]! > low && spans[i]! <= high && other !== scheme && other !== "Unknown") return null;
  }
  return scheme;
}

/** Whether digits pass the check of ISO/IEC 7812-1, annex B. */
export function luhn(digits: string): boolean {
  let sum = 0;
  for (let i = 0; i < digits.length; i++) {
    const d = Number(digits[digits.length - 1 - i]) << (i & 1);
    sum += d > 9 ? d - 9 : d;
  }
  return sum % 10 === 0;
}

/** What is wrong with the digits of a card number, or null. */
export function numberFault(digits: string): Fault | null {
  const n = digits.length;
  if (n === 0) return "required";
  if (n < 8) return "incomplete";
  const [, ...lengths] = kindAt(Number(digits.slice(0, 8)));
  if (lengths.includes(n)) return luhn(digits) ? null : "invalid";
  return n < lengths.at(-1)! ? "incomplete" : "invalid";
}

/** The digits of a card number in groups, as they stand on the card. */
export function group(digits: string): string {
  const brand = brandOf(digits);
  const short = brand === "American Express" || (brand === "Diners Club" && digits.length <= 14);
  const gaps = short ? [4, 10] : [4, 8, 12, 16];
  return digits.replace(/./g, (digit, i: number) => (gaps.includes(i) ? " " + digit : digit));
}

/** More digits than a number has: enough to see that they are too many. */
const MOST = 24;

/**
 * What a field of digits shows after an edit, and where its caret is: behind as many
 * digits as it was. removed says on which side of the caret a separator was deleted, so
 * that the key is not without effect: the digit there goes instead.
 */
export function edited(text: string, caret: number, format: (digits: string) => string, removed?: "before" | "after") {
  let digits = digitsOf(text).slice(0, MOST);
  let behind = digitsOf(text.slice(0, caret)).length;
  if (removed === "before") behind = Math.max(behind - 1, 0);
  if (removed) digits = digits.slice(0, behind) + digits.slice(behind + 1);
  const formatted = format(digits);
  let to = 0;
  for (let seen = 0; seen < behind && to < formatted.length; to++) if (formatted[to] !== " ") seen++;
  return { text: formatted, caret: to };
}

/** A month of a year. */
export interface Expiry {
  month: number;
  year: number;
}

/** Reads 1/30, 01/30, 01/2030, 0130, 012030, 2030-01 and 203001, in digits of any script. */
export function parseExpiry(text: string): Expiry | null {
  const [a = "", b = "", ...more] = text.split(/\P{Nd}+/u).filter(Boolean).map(digitsOf);
  let month = a;
  let year = b;
  if (!b && a.length >= 4) {
    const yearFirst = a.length === 6 && Number(a.slice(0, 2)) > 12;
    [month, year] = yearFirst ? [a.slice(4), a.slice(0, 4)] : [a.slice(0, 2), a.slice(2)];
  } else if (a.length === 4) {
    [month, year] = [b, a];
  }
  if (more.length || month.length < 1 || month.length > 2 || (year.length !== 2 && year.length !== 4)) return null;
  return { month: Number(month), year: Number(year.length === 2 ? "20" + year : year) };
}

/** What is wrong with an expiry date at a time, or null. */
export function expiryFault(text: string, now: number): Fault | null {
  const digits = digitsOf(text);
  if (!digits) return "required";
  const expiry = parseExpiry(text);
  if (!expiry) return digits.length < 4 || digits.length === 5 ? "incomplete" : "invalid";
  const { month, year } = expiry;
  if (month < 1 || month > 12 || year < 2000 || year > 2099) return "invalid";
  // The last day of the month ends where it is twelve hours behind UTC.
  return now >= Date.UTC(year, month, 1, 12) ? "expired" : null;
}

/** MM/YY, or null for what is no expiry date. */
export function formatExpiry(text: string): string | null {
  const e = parseExpiry(text);
  if (!e || e.year < 2000 || e.year > 2099) return null;
  return `${String(e.month).padStart(2, "0")}/${String(e.year).slice(2)}`;
}

/** What the field of the expiry date shows after a character was typed at its end. */
export function typedExpiry(text: string): string {
  const plain = text.replace(/\p{Nd}/gu, digitsOf).replace(/[^0-9\s./-]/g, "");
  const [, month, separator, rest] = /^(\d*)(\D?)(.*)$/.exec(plain) as unknown as [string, string, string, string];
  if (separator) {
    if (month === "" || month === "0") return month;
    return `${month.padStart(2, "0")}/${digitsOf(rest).slice(0, 4)}`;
  }
  if (month.length < 2) return Number(month) > 1 ? `0${month}/` : month;
  // There is no month 13: this is January, and a year.
  const end = Number(month.slice(0, 2)) > 12 ? 1 : 2;
  return `${month.slice(0, end).padStart(2, "0")}/${month.slice(end, end + 4)}`;
}

/** What is wrong with the digits of a security code of a scheme, or null. */
export function codeFault(digits: string, brand: string | null): Fault | null {
  const n = digits.length;
  if (n === 0) return "required";
  if (n < 3) return "incomplete";
  const four = brand === null || brand === "Unknown" || brand === "American Express";
  return n === 3 || (n === 4 && four) ? null : "invalid";
}

/** Whether there are 12 to 19 digits in a row among digits that pass the Luhn check. */
function holdsNumber(digits: string): boolean {
  for (let end = 12; end <= digits.length; end++)
    for (let n = 12; n <= Math.min(19, end); n++) if (luhn(digits.slice(end - n, end))) return true;
  return false;
}

/** What is wrong with a cardholder's name, or null. */
export function nameFault(name: string, required: boolean): Fault | null {
  if (!name.trim()) return required ? "required" : null;
  // A card number in the wrong field would be kept as a name, also one in groups or among
  // other digits. The vault has the same rule, and testdata/names.json cases for both.
  const numbers = name.replace(/[\p{Z}\p{Pd}\p{Cf}\p{Mn}._/\u00b7\u2212\u30fb]/gu, "").match(/\p{Nd}+/gu) ?? [];
  return numbers.map(digitsOf).some(holdsNumber) || [...name].length > 255 || /\p{Cc}/u.test(name) ? "invalid" : null;
}
