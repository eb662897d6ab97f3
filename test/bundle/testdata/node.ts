// Calls functions of the component, outside of a browser: standard input is a list of
// [name, ...arguments], standard output that of the results.
import { readFileSync } from "node:fs";
import * as format from "../../../httpapi/cardentry/src/format.js";
import { encrypt } from "../../../httpapi/cardentry/src/jwe.js";
import * as messages from "../../../httpapi/cardentry/src/messages.js";
import * as texts from "../../../httpapi/cardentry/src/texts.js";

const { group } = format;
const functions = {
  ...format,
  ...messages,
  ...texts,
  encrypt,
  edit: (text, caret, removed) => format.edited(text, caret, group, removed),
  // What a field of an expiry date shows after each key.
  type: (keys) => keys.reduce((shown, key) => format.typedExpiry(shown + key), ""),
};

const results = [];
for (const [name, ...args] of JSON.parse(readFileSync(0, "utf8"))) results.push(await functions[name](...args));
console.log(JSON.stringify(results.map((result) => result ?? null)));
