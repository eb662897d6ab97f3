// What people read and hear. Every text may be replaced: see addTexts in
// card-entry.d.ts, which lists them too.

const en = {
  title: "Card details",
  name: "Name on card",
  name_optional: "Name on card (optional)",
  number: "Card number",
  expiry: "Expiry date",
  expiry_placeholder: "MM/YY",
  code: "Security code",
  code_back: "3 digits on the back of the card",
  code_front: "4 digits on the front of the card",

  name_required: "Enter the name on the card",
  name_invalid: "Check the name",
  number_required: "Enter the card number",
  number_incomplete: "Number is incomplete",
  number_invalid: "Check the number",
  expiry_required: "Enter the date",
  expiry_incomplete: "Incomplete",
  expiry_invalid: "Check the date",
  expiry_expired: "Expired",
  code_required: "Enter the code",
  code_incomplete: "Incomplete",
  code_invalid: "Check the code",

  sending: "Sending your card details…",
  waiting: "Waiting for your bank to confirm…",
  done: "Your card details were received.",
  challenge: "Confirm your card",

  incomplete: "Please check your card details.",
  invalid_account_number: "The card number is not valid.",
  invalid_expiry_date: "The expiry date is not valid.",
  card_expired: "The card has expired.",
  invalid_security_code: "The security code is not valid.",
  unsupported_scheme: "This type of card is not accepted.",
  identification_failed: "Your card could not be verified. Please use another card.",
  too_many_attempts: "Too many cards were declined. Please start again.",
  session_expired: "Your session has expired. Please press the button again.",
  session_replaced: "This could not be completed. Please press the button again.",
  network_error: "The connection failed. Please try again.",
  rate_limited: "Too many attempts. Please wait a moment and try again.",
  payload_refused: "The card details could not be sent. Please try again.",
  unavailable: "The card fields could not be loaded. Please try again.",
};

/** All texts that there are. */
export type Texts = typeof en;

const de: Texts = {
  title: "Kartendaten",
  name: "Name auf der Karte",
  name_optional: "Name auf der Karte (optional)",
  number: "Kartennummer",
  expiry: "Gültig bis",
  expiry_placeholder: "MM/JJ",
  code: "Prüfnummer",
  code_back: "3 Ziffern auf der Rückseite der Karte",
  code_front: "4 Ziffern auf der Vorderseite der Karte",

  name_required: "Namen eingeben",
  name_invalid: "Namen prüfen",
  number_required: "Kartennummer eingeben",
  number_incomplete: "Nummer unvollständig",
  number_invalid: "Nummer prüfen",
  expiry_required: "Datum eingeben",
  expiry_incomplete: "Unvollständig",
  expiry_invalid: "Datum prüfen",
  expiry_expired: "Abgelaufen",
  code_required: "Nummer eingeben",
  code_incomplete: "Unvollständig",
  code_invalid: "Nummer prüfen",

  sending: "Ihre Kartendaten werden gesendet …",
  waiting: "Warten auf die Bestätigung durch Ihre Bank …",
  done: "Ihre Kartendaten sind angekommen.",
  challenge: "Bestätigung Ihrer Karte",

  incomplete: "Bitte prüfen Sie Ihre Kartendaten.",
  invalid_account_number: "Die Kartennummer ist ungültig.",
  invalid_expiry_date: "Das Gültigkeitsdatum ist ungültig.",
  card_expired: "Die Karte ist abgelaufen.",
  invalid_security_code: "Die Prüfnummer ist ungültig.",
  unsupported_scheme: "Karten dieser Art werden nicht angenommen.",
  identification_failed: "Die Karte wurde nicht bestätigt. Bitte nehmen Sie eine andere.",
  too_many_attempts: "Zu viele Karten wurden abgelehnt. Bitte beginnen Sie von vorn.",
  session_expired: "Die Zeit für die Eingabe war abgelaufen. Bitte klicken Sie noch einmal auf die Schaltfläche.",
  session_replaced: "Das wurde nicht abgeschlossen. Bitte klicken Sie noch einmal auf die Schaltfläche.",
  network_error: "Die Verbindung ist fehlgeschlagen. Bitte versuchen Sie es noch einmal.",
  rate_limited: "Zu viele Versuche. Bitte warten Sie einen Augenblick und versuchen Sie es dann noch einmal.",
  payload_refused: "Die Kartendaten konnten nicht gesendet werden. Bitte versuchen Sie es noch einmal.",
  unavailable: "Die Kartenfelder konnten nicht geladen werden. Bitte versuchen Sie es noch einmal.",
};

const known = new Map<string, Partial<Texts>>([["en", en], ["de", de]]);

/** Adds to the texts of a locale, or replaces some. */
export function addTexts(locale: string, texts: Partial<Texts>): void {
  const key = locale.toLowerCase();
  known.set(key, { ...known.get(key), ...texts });
}

/** All texts in a locale: of "de-AT" first, then of "de", then English. */
export function textsOf(locale: string, own: Partial<Texts>): Texts {
  const key = locale.toLowerCase();
  return { ...en, ...known.get(key.split("-")[0]!), ...known.get(key), ...own };
}
