/**
 * Types of the card-entry component of Cardvault:
 *
 *     <script type="module" src="https://vault.example/vault/sdk/v1/card-entry.js"></script>
 *     <card-entry session-id="…"></card-entry>
 *
 * A project keeps a copy of this file, which the vault serves beside the script:
 *
 *     curl -o card-entry.d.ts https://vault.example/vault/sdk/v1/card-entry.d.ts
 *
 * With React 19, where attributes and on… properties of custom elements work as they
 * are, tell TypeScript of the element:
 *
 *     import type { CardEntry, CardEntryAttributes } from "./card-entry.js";
 *
 *     declare module "react" {
 *       namespace JSX {
 *         interface IntrinsicElements {
 *           "card-entry": React.DetailedHTMLProps<React.HTMLAttributes<CardEntry>, CardEntry> & CardEntryAttributes;
 *         }
 *       }
 *     }
 */

/** What the session is for. */
export type Action = "tokenize_card" | "refresh_security_code" | "replace_card";

/** The fields of the form. */
export type Field = "number" | "expiry" | "code" | "name";

/** Why a submission did not succeed. */
export type ReasonCode =
  /** Fields are missing or wrong. They show it, and the first of them has the focus. */
  | "incomplete"
  /** The vault has refused the card. The field shows it, and the session goes on. */
  | "invalid_account_number"
  | "invalid_expiry_date"
  | "card_expired"
  | "invalid_security_code"
  | "unsupported_scheme"
  /** The cardholder could not be verified, or five cards were refused. */
  | "identification_failed"
  | "too_many_attempts"
  /** The session is unknown or over. */
  | "session_expired"
  /**
   * The session got a successor after the card was sent. It may have made a token all the
   * same, which your server reads from GET /sessions/{id}.
   */
  | "session_replaced"
  /** No answer in 30 seconds, no connection, or the vault is unavailable. */
  | "network_error"
  /** Too many requests; see retry_after. */
  | "rate_limited"
  /** The vault could not read the payload. The next submission fetches the key anew. */
  | "payload_refused"
  /**
   * The frame did not answer within 10 seconds: base-url is not where the vault is served,
   * the origin of the page is none of its allowed origins, or there was no connection. The
   * next submission loads it anew. Also: the page was not loaded over https, or the element
   * is in no document.
   */
  | "unavailable";

/**
 * What to do about it. "correct": the shopper looks at the fields and submits again.
 * "retry": submit again, which is safe: a session makes one token. "new_session": set a
 * new session-id; what the shopper has typed is kept, and the message stays until they
 * submit again. "check_setup": look at the page, if it happens always.
 */
export type ErrorAction = "correct" | "retry" | "new_session" | "check_setup";

/** The details of the events. None of them holds what the shopper has typed. */
export interface Detail {
  /** The fields can be submitted. masked_account_number and scheme: of the card whose code is asked for, or which is replaced. */
  ready: { action: Action; masked_account_number?: string; scheme?: string };
  /** brand: the scheme as the vault names it, null while it is not known. */
  change: {
    brand: string | null;
    complete: boolean;
    errors: { [field in Field]?: "required" | "incomplete" | "invalid" | "expired" };
  };
  success: { token_id: string };
  /** message: a sentence in the locale, for the shopper. retry_after: seconds. */
  error: { reason_code: ReasonCode; action: ErrorAction; message: string; retry_after?: number };
  /** The shopper is asked to confirm the card at this address. */
  challenge: { url: string };
  /** It is over: whoever shows the page at this address takes it away. */
  challengeend: { url: string };
}

/** Why submit has rejected. message is that of the error event. */
export declare class CardEntryError extends Error {
  readonly reason_code: ReasonCode;
  readonly action: ErrorAction;
  readonly retry_after?: number;
}

/** Texts that can be replaced, by their names. */
export interface Texts {
  /** The title of the frame. */
  title: string;
  name: string;
  name_optional: string;
  number: string;
  expiry: string;
  expiry_placeholder: string;
  code: string;
  code_back: string;
  code_front: string;
  name_required: string;
  name_invalid: string;
  number_required: string;
  number_incomplete: string;
  number_invalid: string;
  expiry_required: string;
  expiry_incomplete: string;
  expiry_invalid: string;
  expiry_expired: string;
  code_required: string;
  code_incomplete: string;
  code_invalid: string;
  /** While the card is on its way, while it is identified and verified, and after success. */
  sending: string;
  waiting: string;
  done: string;
  /** The title of the frame of a challenge. */
  challenge: string;
  /** Messages of errors, by their reason codes. */
  incomplete: string;
  invalid_account_number: string;
  invalid_expiry_date: string;
  card_expired: string;
  invalid_security_code: string;
  unsupported_scheme: string;
  identification_failed: string;
  too_many_attempts: string;
  session_expired: string;
  session_replaced: string;
  network_error: string;
  rate_limited: string;
  payload_refused: string;
  unavailable: string;
}

/** The attributes of the element, and the listeners that React and others take for such. */
export interface CardEntryAttributes {
  "session-id"?: string | undefined;
  "base-url"?: string | undefined;
  locale?: string | undefined;
  "cardholder-name"?: "off" | "optional" | "required" | undefined;
  "color-scheme"?: "light" | "dark" | undefined;
  name?: string | undefined;
  onready?: ((event: CustomEvent<Detail["ready"]>) => void) | undefined;
  onchange?: ((event: CustomEvent<Detail["change"]>) => void) | undefined;
  onsuccess?: ((event: CustomEvent<Detail["success"]>) => void) | undefined;
  onerror?: ((event: CustomEvent<Detail["error"]>) => void) | undefined;
  onchallenge?: ((event: CustomEvent<Detail["challenge"]>) => void) | undefined;
  onchallengeend?: ((event: CustomEvent<Detail["challengeend"]>) => void) | undefined;
}

/**
 * The element <card-entry>. It takes no part in the validation of a form, and a disabled
 * fieldset does not lock it. Enter in a field clicks the form's first submit button.
 */
export declare class CardEntry extends HTMLElement {
  /**
   * Adds texts for a locale, such as "fr" or "pt-BR", to all elements. What is missing is
   * taken from the language of a regional locale, then from English.
   */
  static addTexts(locale: string, texts: Partial<Texts>): void;

  /**
   * The attribute session-id: the credential of one session, which makes one token. A new
   * one keeps what the shopper has typed. What waits to be sent is sent in it; what was
   * sent already ends with session_replaced, and is not sent again by itself.
   */
  sessionId: string;

  /** The attribute base-url. Defaults to where the script came from. */
  baseUrl: string;

  /** The attribute locale. Defaults to the closest lang, then to the browser's language, then to "en". */
  locale: string;

  /** Texts of this element alone, in front of those of its locale. */
  texts: Partial<Texts>;

  /** The form that the element is in. After success its value there, under its name, is the id of the token. */
  readonly form: HTMLFormElement | null;

  /**
   * Sends the card, and resolves when the session has made its token. It waits until the
   * element is ready, and without a session-id for one. While a call is under way, and after
   * success, every call returns the same promise. It rejects with a CardEntryError, which
   * need not be caught: the error event tells the same.
   */
  submit(): Promise<{ token_id: string }>;

  /** Focuses the first field that shows an error, or else the first. */
  focus(): void;

  /** Empties the fields. After success there is nothing to empty: a new card needs a new session. */
  reset(): void;

  addEventListener<K extends keyof Detail>(
    type: K,
    listener: (this: CardEntry, event: CustomEvent<Detail[K]>) => unknown,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject,
    options?: boolean | AddEventListenerOptions,
  ): void;
  removeEventListener<K extends keyof Detail>(
    type: K,
    listener: (this: CardEntry, event: CustomEvent<Detail[K]>) => unknown,
    options?: boolean | EventListenerOptions,
  ): void;
  removeEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject,
    options?: boolean | EventListenerOptions,
  ): void;
}

declare global {
  interface HTMLElementTagNameMap {
    "card-entry": CardEntry;
  }
}
