// <card-entry>: what runs in the shop's page. It holds one frame of the vault's origin,
// in which the card is typed and encrypted. No card data gets here.

import type * as api from "./card-entry.js";
import { CONNECT, embedders, isFromFrame, LOOK, type Failure, type Setup, type ToFrame } from "./messages.js";
import { addTexts, textsOf, type Texts } from "./texts.js";

/** Where the script came from, without /sdk/v1/card-entry.js. */
const HOME = new URL("../..", import.meta.url).href;

/** How long the frame may take to load and answer, in milliseconds. */
const PATIENCE = 10_000;

const UNAVAILABLE: Failure = { reason_code: "unavailable", action: "check_setup" };
const REPLACED: Failure = { reason_code: "session_replaced", action: "correct" };

const style = new CSSStyleSheet();
style.replaceSync(`
  :host { display: block }
  :host([hidden]) { display: none }
  iframe { display: block; box-sizing: border-box; width: 100%; border: 0 }
  .fields { height: 8rem; opacity: 0; transition: opacity .15s, height .15s }
  .fields.shown { opacity: 1 }
  .challenge { height: min(30rem, 70vh); margin-block-start: 1rem; border: 1px solid #8a93a0; border-radius: .5rem;
    background: #fff; color-scheme: light } /* as pages expect that say nothing of it */
  @media (prefers-reduced-motion: reduce) { .fields { transition: none } }
`);

class CardEntryError extends Error implements api.CardEntryError {
  readonly reason_code: api.ReasonCode;
  readonly action: api.ErrorAction;
  readonly retry_after?: number;

  constructor(detail: api.Detail["error"]) {
    super(detail.message);
    this.name = "CardEntryError";
    this.reason_code = detail.reason_code;
    this.action = detail.action;
    if (detail.retry_after !== undefined) this.retry_after = detail.retry_after;
  }
}

/** A call of submit. */
interface Submission {
  promise: Promise<api.Detail["success"]>;
  resolve(token: api.Detail["success"]): void;
  reject(error: CardEntryError): void;
  turn?: number; // of the session that the frame had when it was told to submit
  token?: string; // once it is done
}

class CardEntry extends HTMLElement implements api.CardEntry {
  static readonly formAssociated = true;
  static readonly observedAttributes = ["session-id", "base-url", "locale", "cardholder-name", "color-scheme"];
  static readonly #all = new Set<CardEntry>(); // in documents

  static addTexts(locale: string, texts: Partial<Texts>) {
    addTexts(locale, texts);
    for (const element of CardEntry.#all) element.#tell();
  }

  readonly #internals = this.attachInternals();
  // Closed, so that scripts of the page do not come upon the frame by accident.
  readonly #root = this.attachShadow({ mode: "closed" });
  readonly #observer = new MutationObserver(() => this.#tell());
  readonly #dark = matchMedia("(prefers-color-scheme: dark)");
  readonly #restyle = () => this.#tell();
  #texts: Partial<Texts> = {};
  #frame: HTMLIFrameElement | null = null;
  #challenge: string | null = null; // its address
  #bank: HTMLIFrameElement | null = null; // unless the shop shows it
  #port: MessagePort | null = null;
  #connected = false;
  #unavailable = false;
  #timer = 0; // of the last attempt to open the frame
  #turn = 0; // counts sessions, so that what is told of one is not taken for the next
  #told = "";
  #submission: Submission | null = null;

  constructor() {
    super();
    this.#root.adoptedStyleSheets = [style];
  }

  get sessionId() {
    return this.getAttribute("session-id") ?? "";
  }
  set sessionId(id: string) {
    this.setAttribute("session-id", id ?? "");
  }

  get baseUrl() {
    return this.getAttribute("base-url") || HOME;
  }
  set baseUrl(url: string) {
    this.setAttribute("base-url", url ?? "");
  }

  get locale() {
    return (
      this.getAttribute("locale") ||
      this.closest<HTMLElement>("[lang]")?.lang ||
      document.documentElement.lang ||
      navigator.language ||
      "en"
    );
  }
  set locale(locale: string) {
    this.setAttribute("locale", locale ?? "");
  }

  get texts() {
    return { ...this.#texts };
  }
  set texts(texts: Partial<Texts>) {
    this.#texts = { ...texts };
    this.#tell();
  }

  get form() {
    return this.#internals.form;
  }

  submit(): Promise<api.Detail["success"]> {
    if (!this.#submission) {
      this.#begin();
      if (!this.isConnected) this.#abandon();
      else if (this.#unavailable) this.#open();
      else this.#send();
    }
    return this.#begin().promise;
  }

  override focus() {
    // First the frame, which could not take the focus from the page by itself everywhere.
    this.#frame?.focus();
    this.#post({ type: "focus" });
  }

  reset() {
    this.#post({ type: "reset" });
  }

  formResetCallback() {
    this.#internals.setFormValue(null);
    this.reset();
  }

  connectedCallback() {
    // Properties that were set before the script was loaded hide those of the class.
    for (const name of ["sessionId", "baseUrl", "locale", "texts"] as const) {
      if (!Object.hasOwn(this, name)) continue;
      const value = this[name];
      delete (this as Partial<CardEntry>)[name];
      Object.assign(this, { [name]: value });
    }
    CardEntry.#all.add(this);
    // Most of what switches the theme, language or direction of a page does it here. The
    // rest is seen when the window changes its size or gets the focus.
    for (const node of [this, document.documentElement, document.body]) {
      this.#observer.observe(node, { attributes: true });
    }
    this.#dark.addEventListener("change", this.#restyle);
    for (const type of ["resize", "focus"]) window.addEventListener(type, this.#restyle);
    this.#open();
  }

  disconnectedCallback() {
    CardEntry.#all.delete(this);
    this.#observer.disconnect();
    this.#dark.removeEventListener("change", this.#restyle);
    for (const type of ["resize", "focus"]) window.removeEventListener(type, this.#restyle);
    this.#close();
    this.#abandon();
  }

  /** moveBefore keeps the frame, and what was typed. */
  connectedMoveCallback() {}

  attributeChangedCallback(name: string, old: string | null, value: string | null) {
    if (old === value) return;
    if (name === "session-id") {
      this.#turn++;
      if (this.#submission?.token) {
        this.#submission = null;
        this.#internals.setFormValue(null);
      }
    }
    // An element of the page's HTML hears of its attributes before it is connected.
    if (name === "base-url" && this.#timer) this.#open();
    else this.#tell();
  }

  #open() {
    this.#close();
    const url = frameOf(this.baseUrl);
    this.#timer = setTimeout(
      () => {
        this.#unavailable = true;
        this.#fail(UNAVAILABLE);
      },
      url ? PATIENCE : 0, // scripts that come later in the page are to hear of it too
    );
    if (!url) return;
    const frame = document.createElement("iframe");
    this.#frame = frame;
    frame.className = "fields";
    frame.referrerPolicy = "no-referrer";
    frame.addEventListener("load", () => {
      const { port1, port2 } = new MessageChannel();
      this.#port?.close();
      this.#port = port1;
      this.#connected = false;
      port1.onmessage = (event) => {
        if (this.#port === port1) this.#hear(event.data);
      };
      frame.contentWindow?.postMessage({ type: CONNECT }, url.origin, [port2]);
    });
    frame.src = url.href;
    this.#dress();
    this.#root.append(frame);
  }

  #close() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#port?.close();
    this.#frame?.remove();
    this.#confirm(null);
    this.#port = this.#frame = null;
    this.#connected = this.#unavailable = false;
  }

  /** Ends a submission that nothing comes of outside of a document, unless that is on the way to elsewhere. */
  #abandon() {
    queueMicrotask(() => {
      if (!this.isConnected && this.#submission && !this.#submission.token) this.#fail(UNAVAILABLE);
    });
  }

  /** Gives the frame its title, and the colour scheme without which it would not be transparent. */
  #dress() {
    if (!this.#frame) return;
    this.#frame.title = textsOf(this.locale, this.#texts).title;
    this.#frame.style.colorScheme = this.#scheme();
  }

  #scheme(): "light" | "dark" {
    const asked = this.getAttribute("color-scheme");
    if (asked === "light" || asked === "dark") return asked;
    const used = getComputedStyle(this).colorScheme;
    return used.includes("dark") && (this.#dark.matches || !used.includes("light")) ? "dark" : "light";
  }

  #tell() {
    this.#dress();
    if (!this.#connected) return;
    const computed = getComputedStyle(this);
    const setup: Setup = {
      type: "setup",
      session: this.sessionId,
      turn: this.#turn,
      name: this.getAttribute("cardholder-name") ?? "off",
      locale: this.locale,
      dir: computed.direction,
      scheme: this.#scheme(),
      look: Object.fromEntries(LOOK.map((name) => [name, computed.getPropertyValue(name).trim()])),
      texts: textsOf(this.locale, this.#texts),
    };
    const told = JSON.stringify(setup);
    if (told === this.#told) return;
    this.#told = told;
    this.#post(setup);
  }

  #post(message: ToFrame) {
    if (this.#connected) this.#port?.postMessage(message);
  }

  /** Has the frame submit, as soon as there is one. */
  #send() {
    if (!this.#connected || !this.#submission || this.#submission.token) return;
    this.#submission.turn = this.#turn;
    this.#post({ type: "submit" });
  }

  #hear(message: unknown) {
    if (!isFromFrame(message)) return;
    const { type, turn } = message;
    if (turn !== this.#turn && type !== "connected" && type !== "resize") return;
    switch (message.type) {
      case "connected":
        clearTimeout(this.#timer);
        this.#connected = true;
        this.#unavailable = false;
        this.#told = "";
        this.#tell();
        this.#send();
        break;
      case "resize":
        if (!this.#frame) break;
        this.#frame.style.height = `${message.height}px`;
        this.#frame.classList.add("shown");
        break;
      case "replaced":
        if (this.#submission && this.#submission.turn !== turn) this.#fail(REPLACED);
        break;
      case "enter":
        this.#enter();
        break;
      case "challenge":
        this.#confirm(message.url);
        break;
      case "ready":
        this.#dispatch("ready", message.detail);
        break;
      case "change":
        this.#dispatch("change", message.detail);
        break;
      case "success":
        this.#succeed(message.detail);
        break;
      case "error":
        this.#fail(message.detail);
    }
  }

  /** Does what Enter does in a field of a form. */
  #enter() {
    if (!this.form) return void this.submit();
    const controls = Array.from(this.form.elements) as HTMLButtonElement[];
    const button = controls.find(({ type }) => type === "submit");
    if (button) button.click(); // nothing happens if it is disabled
    else this.form.requestSubmit();
  }

  #dispatch<K extends keyof api.Detail>(type: K, detail: api.Detail[K], cancelable = false): boolean {
    return this.dispatchEvent(new CustomEvent(type, { detail, cancelable }));
  }

  /** The submission that is under way, or a new one. */
  #begin(): Submission {
    if (!this.#submission) {
      const submission = {} as Submission;
      submission.promise = new Promise((resolve, reject) => Object.assign(submission, { resolve, reject }));
      // The error event tells of it.
      submission.promise.catch(() => {});
      this.#submission = submission;
    }
    return this.#submission;
  }

  #succeed(token: api.Detail["success"]) {
    const submission = this.#begin();
    if (submission.token) return; // the frame of an element that was moved tells it anew
    submission.token = token.token_id;
    this.#internals.setFormValue(token.token_id);
    submission.resolve(token);
    this.#dispatch("success", token);
  }

  #fail(failure: Failure) {
    if (this.#submission?.token) return; // the new frame of an element that was moved
    const texts = textsOf(this.locale, this.#texts);
    const detail = { ...failure, message: texts[failure.reason_code] ?? texts.incomplete };
    if (detail.action === "correct") this.focus(); // the field that is wrong
    const submission = this.#submission;
    this.#submission = null;
    submission?.reject(new CardEntryError(detail));
    this.#dispatch("error", detail);
  }

  /** Shows the page on which the shopper confirms the card, unless the shop does. */
  #confirm(address: string | null) {
    if (this.#bank && this.#root.activeElement === this.#bank) this.#frame?.focus();
    this.#bank?.remove();
    const url = this.#challenge;
    this.#bank = this.#challenge = null;
    if (url !== null) this.#dispatch("challengeend", { url });
    if (address === null || !isSafe(address)) return;
    this.#challenge = address;
    if (!this.#dispatch("challenge", { url: address }, true)) return;
    const frame = document.createElement("iframe");
    this.#bank = frame;
    frame.className = "challenge";
    frame.title = textsOf(this.locale, this.#texts).challenge;
    frame.allow = "publickey-credentials-get";
    // All that a bank needs, but not to take the shop's page elsewhere.
    frame.sandbox.add("allow-scripts", "allow-same-origin", "allow-forms", "allow-popups");
    frame.sandbox.add("allow-popups-to-escape-sandbox", "allow-top-navigation-to-custom-protocols");
    frame.src = address;
    this.#root.append(frame);
    frame.focus();
  }
}

/**
 * Where the frame of a vault is, or null if its address is none. The address names the
 * page, so that the vault can answer whether that may hold the frame and name no other.
 */
function frameOf(base: string): URL | null {
  try {
    const url = new URL("sdk/v1/frame.html", new URL(base.replace(/\/?$/, "/"), document.baseURI));
    const holder = window === window.parent ? "" : document.referrer;
    for (const origin of embedders(location, holder)) url.searchParams.append("origin", origin);
    return /^https?:$/.test(url.protocol) ? url : null;
  } catch {
    return null;
  }
}

/** Whether the page at an address may be shown to the shopper. */
function isSafe(address: string): boolean {
  try {
    const { protocol, hostname } = new URL(address);
    return protocol === "https:" || (protocol === "http:" && ["localhost", "127.0.0.1", "[::1]"].includes(hostname));
  } catch {
    return false;
  }
}

if (!customElements.get("card-entry")) customElements.define("card-entry", CardEntry satisfies typeof api.CardEntry);

export { CardEntry, CardEntryError };
