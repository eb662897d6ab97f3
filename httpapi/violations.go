package httpapi

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/invalid"
)

// A violation is a broken field rule as the client sees it.
type violation struct {
	Field   string
	Code    invalid.Code
	Message string
}

// violations are the violations of one request: for each field, the first.
type violations []violation

// messages has a text for each code that is found here; the vault brings its own with its
// errors. Placeholders are filled from our rules, never from the request.
var messages = map[invalid.Code]string{
	invalid.Required:           "is required",
	invalid.Null:               "must not be null",
	invalid.EmptyString:        "must not be empty",
	invalid.Blank:              "must not be blank",
	invalid.Type:               "must be %s",
	invalid.NotAnInteger:       "must be an integer written in digits only",
	invalid.OutOfRange:         "must be between %d and %d",
	invalid.TooShort:           "must have at least %d characters",
	invalid.TooLong:            "must have at most %d characters",
	invalid.Format:             "must be %s",
	invalid.Enum:               "must be one of: %s",
	invalid.UnknownField:       "is not a known field",
	invalid.UnknownParameter:   "is not a known parameter",
	invalid.DuplicateParameter: "must be given only once",
	invalid.EmptyListItem:      "must not contain an empty item",
	invalid.Range:              "must not be after %s",
	invalid.EmptyPatch:         "must have at least one member",
	invalid.DependsOn:          "is required with %s",
}

// note keeps the first violation of a field.
func (v *violations) note(x violation) {
	if !slices.ContainsFunc(*v, func(have violation) bool { return have.Field == x.Field }) {
		*v = append(*v, x)
	}
}

// add notes a violation; limits fill in the text of its code.
func (v *violations) add(field string, code invalid.Code, limits ...any) {
	v.note(violation{field, code, fmt.Sprintf(messages[code], limits...)})
}

// hold notes how the value of a field breaks a rule, unless it keeps it.
func (v *violations) hold(field string, b *rule.Broken) {
	if b != nil {
		v.note(violation{field, b.Code, b.Message})
	}
}

// fieldNames has the name over REST of each field that the vault names in errors. Fields of
// lists are parameters: "query." comes before them. The last group occurs only in Go calls.
var fieldNames = map[string]string{
	"PAN":                  "account_number",
	"Expiry.Month":         "expiry_month",
	"Expiry.Year":          "expiry_year",
	"Name":                 "cardholder_name",
	"CardholderName":       "cardholder_name",
	"SecurityCode":         "security_code",
	"BusinessKey":          "business_key",
	"ImportProvider":       "import_provider",
	"TokenTTL":             "expiration_time",
	"ExpiresAt":            "expires_at",
	"TokenUpdate":          "body",
	"Payload":              "result.enc_payload",
	"Text":                 "text",
	"IdempotencyKey":       "header.idempotency-key",
	"Limit":                "limit",
	"Page":                 "page",
	"From":                 "from",
	"After":                "after",
	"Scheme":               "scheme",
	"NetworkTokenStatus":   "network_token_status",
	"Amount":               "amount",
	"Currency":             "currency_code",
	"Reference":            "reference",
	"Initiator":            "initiator",
	"Merchant":             "merchant_id",
	"NetworkTransactionID": "network_transaction_id",
	"Label":                "label",
	"Scopes":               "scopes",
	"TTL":                  "expiration_time",
	"NotAfter":             "expires_at",
	"AddressRanges":        "address_ranges",
	"ActivateAt":           "activate_at",
	"URL":                  "url",
	"Description":          "description",
	"Events":               "events",
	"Method":               "method",
	"Header":               "headers",
	"Body":                 "body",
	"Marker":               "marker",
	"AID":                  "header.x-provider-aid",
	"MID":                  "header.x-provider-mid",
	"PortalID":             "header.x-provider-portalid",
	"Hash":                 "header.x-provider-hash",

	"Quotas.APIKeys":      "api_keys",
	"Quotas.Webhooks":     "webhooks",
	"Quotas.OpenSessions": "open_sessions",
	"Quotas.PaymentData":  "payment_data",

	"Purpose":          "purpose",
	"Contact":          "contact",
	"Fingerprint":      "fingerprint",
	"ProviderAccounts": "provider_accounts",
	"Notice":           "notice",
	"ID":               "id",
	"Token":            "token",
	"Kind":             "kind",
	"OccurredAt":       "occurred_at",
	"By":               "by",
	"Card":             "card",
	"Failure":          "failure",
}

// merge notes the rules that the vault found broken, for fields without a
// violation of their own. The names of fields begin with prefix.
func (v *violations) merge(prefix string, err error) {
	for _, e := range cardvault.FieldErrors(err) {
		message := e.Message
		if e.Code == invalid.DependsOn {
			for _, name := range []string{"ImportProvider", "NetworkTransactionID"} {
				message = strings.ReplaceAll(message, name, fieldNames[name])
			}
		}
		v.note(violation{prefix + fieldNames[e.Field], e.Code, message})
	}
}

// message joins all violations in one text for humans.
func (v violations) message() string {
	sentences := make([]string, len(v))
	for i, x := range v {
		sentences[i] = x.Field + " " + x.Message + "."
	}
	return strings.Join(sentences, " ")
}

// checkText applies the rules of every string; lengths are in characters.
func (v *violations) checkText(field string, text []byte, min, max int) bool {
	n, control := 0, false
	for rest := text; len(rest) > 0; n++ {
		r, size := utf8.DecodeRune(rest)
		control = control || unicode.IsControl(r)
		rest = rest[size:]
	}

	switch {
	case n == 0:
		v.add(field, invalid.EmptyString)
	case len(bytes.TrimSpace(text)) == 0:
		v.add(field, invalid.Blank)
	case control:
		v.add(field, invalid.Format, "free of control characters")
	case n < min:
		v.add(field, invalid.TooShort, min)
	case n > max:
		v.add(field, invalid.TooLong, max)
	default:
		return true
	}
	return false
}

// shown returns the name under which an answer reports an unknown member: a name may be a
// card number in the wrong place.
func shown(name []byte) string {
	n, digits := 0, 0
	for rest := name; len(rest) > 0; n++ {
		r, size := utf8.DecodeRune(rest)
		rest = rest[size:]
		if !unicode.IsPrint(r) {
			return "?"
		}
		if unicode.IsDigit(r) {
			digits++
		}
	}
	if n == 0 || n > 40 || digits >= 8 {
		return "?"
	}
	return string(name)
}
