/**
 * Types of the card-entry component of Cardvault:
 *
 *     <script type="module" src="https://vault.example/vault/sdk/v1/card-entry.js"></script>
 *     <card-entry session-id="…"></card-entry>
 *
 * With React 19, where attributes and on… properties of custom elements work as they
 * are, tell TypeScript of the element:
 *
 *     declare module "react" {
 *       namespace JSX {
 *         interface IntrinsicElements {
 *           "card-entry": React.HTMLAttributes<CardEntry> & { [attribute: string]: unknown };
 *         }
 *       }
 *     }
 */

/** What the session is for. */
export type Action = "tokenize_card" | "refresh_security_code";

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
  /** No answer in 30 seconds, no connection, or the vault is unavailable. */
  | "network_error"
  /** Too many requests; see retry_after. */
  | "rate_limited"
  /** The vault could not read the payload. The next submission fetches the key anew. */
  | "payload_refused"
  /**
   * The frame did not answer within 10 seconds: base-url is wrong, or the origin of the page
   * is none of the vault's allowed origins. Or the page was not loaded over https.
   */
  | "unavailable";

/**
 * What to do about it. "correct": the shopper corrects the fields and submits again.
 * "retry": submit again, which is safe: a session makes one token. "new_session": set a
 * new session-id; what the shopper has typed is kept. "check_setup": the page is at fault.
 */
export type ErrorAction = "correct" | "retry" | "new_session" | "check_setup";

/** The details of the events. None of them holds what the shopper has typed. */
export interface Detail {
  /** The fields can be submitted. masked_account_number and scheme: of the card whose code is asked for. */
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
  /** While the card is identified and verified, and when that is over. */
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
  network_error: string;
  rate_limited: string;
  payload_refused: string;
  /** For the developer. */
  unavailable: string;
}

/** The element <card-entry>. */
export declare class CardEntry extends HTMLElement {
  /**
   * Adds texts for a locale, such as "fr" or "pt-BR", to all elements. What is missing is
   * taken from the language of a regional locale, then from English.
   */
  static addTexts(locale: string, texts: Partial<Texts>): void;

  /** The attribute session-id: the credential of one session. */
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
   * element is ready. While a call is under way, and after success, every call returns the
   * same promise. It rejects with a CardEntryError, which need not be caught: the error
   * event tells the same.
   */
  submit(): Promise<{ token_id: string }>;

  /** Focuses the first field that shows an error, or else the first. */
  focus(): void;

  /** Empties the fields. */
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
}

declare global {
  interface HTMLElementTagNameMap {
    "card-entry": CardEntry;
  }
}
