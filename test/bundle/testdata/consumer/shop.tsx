// What the comment of card-entry.d.ts and the README tell to write, with strict types.
import { useRef } from "react";
import type { CardEntry, CardEntryAttributes, CardEntryError } from "../../../../httpapi/cardentry/src/card-entry.js";

declare module "react" {
  namespace JSX {
    interface IntrinsicElements {
      "card-entry": React.DetailedHTMLProps<React.HTMLAttributes<CardEntry>, CardEntry> & CardEntryAttributes;
    }
  }
}

export function Pay({ id, onToken }: { id: string; onToken(token: string): void }) {
  const card = useRef<CardEntry>(null);
  card.current?.submit().catch((error: CardEntryError) => error.reason_code === "session_replaced");
  // @ts-expect-error: there are three choices.
  void (<card-entry cardholder-name="maybe" />);
  // @ts-expect-error: a token is no number.
  void (<card-entry onsuccess={(e) => Math.abs(e.detail.token_id)} />);
  return <card-entry ref={card} session-id={id} onsuccess={(e) => onToken(e.detail.token_id)} onerror={(e) => e.detail.action} />;
}

const card = document.querySelector("card-entry")!;
const stored = ({ detail }: CustomEvent<{ token_id: string }>) => card.setAttribute("data-token", detail.token_id);
card.addEventListener("success", stored, { once: true });
card.removeEventListener("success", stored);
card.addEventListener("challengeend", ({ detail }) => detail.url.length);
