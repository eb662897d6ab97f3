// The calls of a session, from the frame to the vault.

import type { Action, Detail, ReasonCode } from "./card-entry.js";
import { encrypt, type SessionKey } from "./jwe.js";
import { isID, membersOf, type Failure } from "./messages.js";

/** How long one call may take, and identification and verification in all: milliseconds. */
const CALL = 30_000;
const IDENTIFICATION = 15 * 60_000;

/** How long a vault that is busy may ask to be left alone during that, in seconds. */
const PAUSE = 60;

/** How far the vault's clock is ahead of ours, in milliseconds. */
let ahead = 0;

/** The time, as the vault says it. */
export const now = () => Date.now() + ahead;

/** What a session needs of the page that it is in. All but current end a wait. */
export interface Page {
  /** Whether this session has not been replaced by another. */
  current(): boolean;
  /** Shows the fields that are asked for. Called once. */
  ready(detail: Detail["ready"]): void;
  /** Resolves when the shopper has submitted what is to be sent. */
  submitted(): Promise<void>;
  /** What was entered, or null after it was shown what is wrong with it. */
  claims(): object | null;
  /** Locks the fields and shows that the card is on its way. */
  send(): void;
  /** Locks the fields and shows that the bank is waited for, with its page if it has one. */
  wait(url: string | null): void;
  succeed(token: string): void;
  /** Unlocks the fields and waits for the next submission. */
  fail(failure: Failure): void;
}

/** What the vault answers on a session. */
interface Answer {
  status?: unknown;
  next_action?: unknown;
  data?: unknown;
}

class Failed extends Error {
  constructor(readonly failure: Failure) {
    super(failure.reason_code);
  }
}

/** The reasons that the vault gives. */
const reasons: readonly unknown[] = [
  "invalid_account_number",
  "invalid_expiry_date",
  "card_expired",
  "invalid_security_code",
  "unsupported_scheme",
  "identification_failed",
  "too_many_attempts",
] satisfies ReasonCode[];

/** Why a card was refused, also if a later vault says it in words that are not known here. */
function refusal(reason: unknown, again: boolean): Failure {
  const other = again ? "incomplete" : "session_expired";
  const reason_code = reasons.includes(reason) ? (reason as ReasonCode) : other;
  return { reason_code, action: again ? "correct" : "new_session" };
}

const unavailable = () => new Failed({ reason_code: "unavailable", action: "check_setup" });
const expired = () => new Failed({ reason_code: "session_expired", action: "new_session" });

function retry(reason_code: ReasonCode, after?: string | null): Failed {
  const seconds = Number(after);
  return new Failed({ reason_code, action: "retry", ...(seconds > 0 && { retry_after: seconds }) });
}

/**
 * Reads a session, or completes its action. The vault is told whose page the frame is in,
 * which it would not see, as the call is of its own origin. "" is a page of the vault.
 */
async function call(id: string, page: string, completion?: object): Promise<Answer> {
  if (!isID(id)) throw expired();
  const url = new URL(`../../sessions/${id}${completion ? "/complete-action" : ""}`, location.href);
  try {
    const response = await fetch(url, {
      headers: { ...(page && { "X-Page-Origin": page }), ...(completion && { "Content-Type": "application/json" }) },
      ...(completion && { method: "POST", body: JSON.stringify(completion) }),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      referrerPolicy: "no-referrer",
      signal: AbortSignal.timeout(CALL),
    });
    const { status, headers } = response;
    const date = Date.parse(headers.get("Date") ?? "");
    if (date) ahead = date - Date.now();
    if (status === 200) return membersOf(await response.json());
    if (status === 403) throw unavailable();
    if (status === 404) throw expired();
    if (status === 422) throw retry("payload_refused");
    // Conflict: it is completed, and the answer was lost.
    if (status !== 409 || !completion) {
      throw retry(status === 429 ? "rate_limited" : "network_error", headers.get("Retry-After"));
    }
  } catch (error) {
    throw error instanceof Failed ? error : retry("network_error");
  }
  return call(id, page);
}

const sleep = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Goes with a session from its first reading to its token, for the page of an origin. */
export async function serve(id: string, origin: string, page: Page): Promise<void> {
  let answer: Answer | null = null; // null: to be asked for
  let open: Answer | null = null; // the one with the key
  let ready = false;
  let sent = false; // and the page was not told what became of it
  let waits = 0;
  let until = 0;
  for (;;) {
    let failure: Failure;
    try {
      // Encryption needs https, of the page around the frame as well.
      if (!window.isSecureContext) throw unavailable();
      answer ??= await call(id, origin);
      if (!page.current()) return;
      const { status, next_action } = answer;
      const data = membersOf(answer.data);
      if (status === "success" && isID(data.token_id)) return page.succeed(data.token_id);
      if (next_action === "wait" || next_action === "challenge") {
        until ||= performance.now() + IDENTIFICATION;
        if (performance.now() >= until) throw expired();
        page.wait(typeof data.url === "string" ? data.url : null);
        await sleep(waits++ ? 2000 : 1000);
        answer = await call(id, origin).catch(async (error) => {
          if (!(error instanceof Failed) || error.failure.action !== "retry") throw error;
          await sleep(1000 * Math.min(error.failure.retry_after ?? 0, PAUSE));
          return answer;
        });
        continue;
      }
      if (status === "failed") {
        failure = refusal(data.reason_code, Boolean(next_action));
        if (next_action) answer = open;
      } else {
        // Open still, or no answer of a vault: nobody has asked to send the card once more.
        if (!isAction(next_action) || sent) {
          answer = null;
          throw retry("network_error");
        }
        open = answer;
        if (!ready) {
          const { masked_account_number, scheme } = data as Partial<Detail["ready"]>;
          const card = masked_account_number && scheme && { masked_account_number, scheme };
          page.ready({ action: next_action, ...card });
        }
        ready = true;
        await page.submitted();
        if (!page.current()) return;
        const claims = page.claims();
        if (!claims) {
          failure = { reason_code: "incomplete", action: "correct" };
        } else {
          page.send();
          sent = true;
          answer = null; // whatever becomes of the call
          const enc_payload = await encrypt(claims, data.jwk as SessionKey, id);
          answer = await call(id, origin, { action: next_action, result: { enc_payload } });
          continue;
        }
      }
    } catch (error) {
      failure = (error instanceof Failed ? error : retry("payload_refused")).failure;
    }
    if (!page.current()) return;
    sent = false;
    page.fail(failure);
    await page.submitted();
  }
}

/** What a session can ask for. */
const actions: readonly unknown[] = ["tokenize_card", "refresh_security_code", "replace_card"] satisfies Action[];

const isAction = (action: unknown): action is Action => actions.includes(action);
