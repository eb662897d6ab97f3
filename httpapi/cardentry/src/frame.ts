// What runs in the frame, in the origin of the vault: the fields. What is typed leaves
// them encrypted, and for the vault alone.

import type { Action, Detail, Field, ReasonCode } from "./card-entry.js";
import {
  brandOf,
  codeFault,
  digitsOf,
  edited,
  expiryFault,
  formatExpiry,
  group,
  nameFault,
  numberFault,
  parseExpiry,
  typedExpiry,
} from "./format.js";
import { CONNECT, isToFrame, LOOK, membersOf, type Failure, type Setup, type Told } from "./messages.js";
import { now, serve } from "./session.js";

const find = <T extends Element = HTMLElement>(id: string) => document.getElementById(id) as Element as T;

const form = find<HTMLFormElement>("card");
const fields: readonly Field[] = ["name", "number", "expiry", "code"];
const inputs = Object.fromEntries(fields.map((f) => [f, find(f)])) as Record<Field, HTMLInputElement>;

let port: MessagePort;
let page = ""; // the origin of the element, if it is not the vault's
let setup: Omit<Setup, "type"> = { session: "", turn: 0, name: "off", locale: "", dir: "", scheme: "", look: {}, texts: {} };

let known = false; // what is asked for
let action: Action = "tokenize_card"; // until then
let scheme: string | null = null; // of the card whose code is asked for
let locked = false;
let done = false;

/** Whether it was submitted, and who waits for that. */
let submitted = false;
let wake = () => {};

/** Fields that show their faults; why the vault has refused a field, until it is edited. */
const shown = new Set<Field>();
const refused = new Map<Field, string>();

/** What was in the fields after the last edit, and what the element was told of it. */
let last = { number: "", expiry: "", change: "" };
let challenge: string | null = null;

/** The text below the fields, by its key, and whether it is an error. */
let said = { key: "", error: false };

function tell(message: Told) {
  port.postMessage({ ...message, turn: setup.turn });
}

// What is in the fields, and what is wrong with it.

function asked(): Field[] {
  if (action === "refresh_security_code") return ["code"];
  return fields.filter((f) => f !== "name" || setup.name === "optional" || setup.name === "required");
}

function brand(): string | null {
  return action === "refresh_security_code" ? scheme : brandOf(digitsOf(inputs.number.value));
}

function faultOf(f: Field) {
  const { value } = inputs[f];
  switch (f) {
    case "name":
      return nameFault(value, setup.name === "required");
    case "number":
      return numberFault(digitsOf(value));
    case "expiry":
      return expiryFault(value, now());
    case "code":
      return codeFault(digitsOf(value), brand());
  }
}

function faults(): Detail["change"]["errors"] {
  return Object.fromEntries(asked().map((f) => [f, faultOf(f)]).filter(([, fault]) => fault));
}

function claims(): object {
  const security_code = digitsOf(inputs.code.value);
  if (action === "refresh_security_code") return { security_code };
  const { month, year } = parseExpiry(inputs.expiry.value)!;
  const name = asked().includes("name") && inputs.name.value.trim();
  return {
    account_number: digitsOf(inputs.number.value),
    expiry_month: month,
    expiry_year: year,
    security_code,
    ...(name && { cardholder_name: name }),
  };
}

// What is seen and heard.

/** Sets a text, which is announced in a live region only if it is another. */
function put(id: string, text: string | null | undefined) {
  const node = find(id);
  if (node.textContent !== (text ?? "")) node.textContent = text ?? "";
}

/** Shows a text below the fields, which is announced as well. */
function say(key: string, error = false) {
  said = { key, error };
  if (!key) put("status", "");
}

/** Lets be heard what some fields show as their errors. */
function announce(these: readonly Field[]) {
  said.key = "";
  render();
  const wrong = these.filter((f) => inputs[f].ariaInvalid === "true");
  const errors = wrong.map((f) => `${setup.texts[f]}: ${find(f + "-error").textContent}`);
  put("status", errors.join(". "));
}

function render() {
  const errors = faults();
  const stored = action === "refresh_security_code";
  // Not to show the fields of a card to whom only the code will be asked for.
  form.hidden = !known && setup.session !== "";
  for (const f of fields) {
    const input = inputs[f];
    if (!errors[f]) shown.delete(f);
    const error = refused.get(f) ?? (shown.has(f) ? `${f}_${errors[f]}` : "");
    const box = input.closest<HTMLElement>(".field")!;
    box.hidden = !asked().includes(f);
    box.classList.toggle("invalid", error !== "");
    input.ariaInvalid = String(error !== "");
    input.readOnly = locked;
    input.disabled = done || box.hidden;
    put(f + "-error", setup.texts[error]);
    put(f + "-label", setup.texts[f]);
  }
  if (setup.name === "optional") put("name-label", setup.texts.name_optional);
  inputs.name.ariaRequired = String(setup.name === "required");
  inputs.expiry.placeholder = setup.texts.expiry_placeholder ?? "";
  const front = brand() === "American Express";
  inputs.code.placeholder = front ? "1234" : "123";
  find("code-mark").classList.toggle("amex", front);
  put("code-hint", setup.texts[front ? "code_front" : "code_back"]);
  put("brand", brand());
  find("masked").hidden = !stored;
  // What is hidden would be read out all the same.
  inputs.code.setAttribute("aria-describedby", `${stored ? "masked " : ""}code-error code-hint`);
  const status = find("status");
  status.className = !said.key ? "unseen" : said.error ? "error" : "";
  if (said.key) put("status", setup.texts[said.key]);
  form.ariaBusy = String(locked);
  form.classList.toggle("done", done);
}

/** Renders, and tells the element what has changed. */
function changed() {
  render();
  const errors = faults();
  const detail = { brand: brand(), complete: Object.keys(errors).length === 0, errors };
  const change = JSON.stringify(detail);
  if (change === last.change) return;
  last.change = change;
  tell({ type: "change", detail });
}

function empty() {
  for (const f of fields) inputs[f].value = "";
  refused.clear();
  shown.clear();
  last = { number: "", expiry: "", change: "" };
}

// Typing.

function write(input: HTMLInputElement, text: string, caret = text.length) {
  if (input.value === text) return;
  input.value = text;
  // Elsewhere it would take the focus in Safari.
  if (document.activeElement === input) input.setSelectionRange(caret, caret);
}

const typed: Record<Field, (event: InputEvent) => void> = {
  name() {},
  number({ inputType }) {
    const { value, selectionStart } = inputs.number;
    // A deletion that left all digits took a separator.
    const side = ({ deleteContentBackward: "before", deleteContentForward: "after" } as const)[inputType];
    const removed = digitsOf(value) === last.number ? side : undefined;
    const { text, caret } = edited(value, selectionStart ?? value.length, group, removed);
    write(inputs.number, text, caret);
    last.number = digitsOf(text);
  },
  expiry({ inputType }) {
    const { value } = inputs.expiry;
    const atEnd = value.length === last.expiry.length + 1 && value.startsWith(last.expiry);
    // Autofill is no InputEvent everywhere, and has no inputType then.
    if (atEnd) write(inputs.expiry, typedExpiry(value));
    else if (!inputType?.startsWith("delete")) write(inputs.expiry, formatExpiry(value) ?? value);
    last.expiry = inputs.expiry.value;
  },
  code() {
    const { value, selectionStart } = inputs.code;
    const { text, caret } = edited(value, selectionStart ?? value.length, (digits) => digits);
    write(inputs.code, text, caret);
  },
};

for (const f of fields) {
  const input = inputs[f];
  input.addEventListener("input", (event) => {
    if ((event as InputEvent).isComposing) return;
    typed[f](event as InputEvent);
    refused.delete(f);
    say(""); // also what was announced of a field, to be heard if it is so again
    changed();
  });
  input.addEventListener("blur", () => {
    if (!input.value || locked || done) return;
    if (f === "expiry") write(input, formatExpiry(input.value) ?? input.value);
    if (!faultOf(f)) return;
    shown.add(f);
    announce([f]);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing && !event.repeat && !locked) tell({ type: "enter" });
  });
  // All of a field is a place to click.
  input.closest(".field")!.addEventListener("mousedown", (event) => {
    if (event.target === input) return;
    event.preventDefault();
    input.focus();
  });
}
form.addEventListener("submit", (event) => event.preventDefault());

// The session.

/** Where the vault's refusals are shown, and with what text. */
const refusals: { [reason in ReasonCode]?: [Field, string] } = {
  invalid_account_number: ["number", "number_invalid"],
  unsupported_scheme: ["number", "unsupported_scheme"],
  invalid_expiry_date: ["expiry", "expiry_invalid"],
  card_expired: ["expiry", "expiry_expired"],
  invalid_security_code: ["code", "code_invalid"],
};

/** Locks the fields or unlocks them, and shows the page of a bank or takes it away. */
function lock(on: boolean, url: string | null = null) {
  locked = on;
  render();
  if (url !== challenge) tell({ type: "challenge", url });
  challenge = url;
}

function fail(failure: Failure) {
  submitted = false;
  const { reason_code } = failure;
  const wrong = reason_code === "incomplete" ? asked().filter(faultOf) : [];
  for (const f of wrong) shown.add(f);
  const [field, text] = refusals[reason_code] ?? [];
  const seen = field && text && asked().includes(field);
  if (seen) refused.set(field, text);
  say(seen || wrong.length ? "" : reason_code, true);
  lock(false);
  if (!said.key) announce(asked());
  tell({ type: "error", detail: failure });
}

function start() {
  const { session, turn } = setup;
  done = false;
  refused.clear();
  // What was sent may have made a token. It is not sent again for being under way.
  if (submitted && locked) say("session_replaced", true);
  else if (!said.error) say("");
  submitted &&= !locked;
  if (!submitted) tell({ type: "replaced" });
  lock(false);
  if (!session) return;
  void serve(session, page, {
    current: () => turn === setup.turn,
    ready(detail) {
      known = true;
      ({ action } = detail);
      scheme = detail.scheme ?? null;
      put("masked-scheme", scheme);
      put("masked-number", detail.masked_account_number?.replace(/.*(?=.{4})/, "•••• "));
      if (!said.error) say("");
      lock(false);
      tell({ type: "ready", detail });
      changed();
    },
    submitted: () => (submitted ? Promise.resolve() : new Promise((resolve) => (wake = resolve))),
    claims: () => (Object.keys(faults()).length ? null : claims()),
    send() {
      say("sending");
      lock(true);
    },
    wait(url) {
      say("waiting");
      lock(true, url);
    },
    succeed(token_id) {
      submitted = false;
      done = true;
      empty();
      say("done");
      lock(false);
      changed();
      tell({ type: "success", detail: { token_id } });
    },
    fail,
  });
}

// The element.

function set(next: Setup) {
  const { turn } = setup;
  setup = next;
  const root = document.documentElement;
  root.lang = next.locale;
  root.dir = next.dir;
  root.dataset.scheme = next.scheme;
  for (const name of LOOK) root.style.setProperty(name, next.look[name] ?? "");
  if (next.turn !== turn) start();
  else if (known) changed();
  else render();
}

function hear(message: unknown) {
  if (!isToFrame(message)) return;
  switch (message.type) {
    case "setup":
      set(message);
      break;
    case "submit":
      if (done) break;
      submitted = true;
      wake();
      break;
    case "focus":
      inputs[asked().find((f) => refused.has(f) || shown.has(f)) ?? asked()[0]!].focus();
      break;
    case "reset":
      if (done) break;
      empty();
      say("");
      changed();
  }
}

/** Whose pages may hold the frame: the vault's own, and those that it allows of the ones asked for. */
const allowed = document.querySelector<HTMLMetaElement>("meta[name=cardvault-origins]")!.content;
const origins = [location.origin, ...allowed.split(" ")];

window.addEventListener("message", function connect({ source, origin, data, ports: [end] }: MessageEvent) {
  if (source !== window.parent || !origins.includes(origin)) return;
  if (membersOf(data).type !== CONNECT || !end) return;
  window.removeEventListener("message", connect);
  port = end;
  if (origin !== location.origin) page = origin;
  port.onmessage = (event) => hear(event.data);
  tell({ type: "connected" });
  // A page that the browser keeps for the way back has no card in it.
  window.addEventListener("pagehide", () => hear({ type: "reset" }));
  const { body } = document;
  new ResizeObserver(() => tell({ type: "resize", height: Math.ceil(body.getBoundingClientRect().height) })).observe(body);
});
