// Package invalid has the codes that say which rule a value breaks, in cardvault.FieldError
// and in validation_errors over REST.
package invalid

// A Code names a rule.
type Code string

// The rules of values.
const (
	Required     Code = "required"     // is missing
	DependsOn    Code = "depends_on"   // is missing, and needed by another field
	EmptyString  Code = "empty_string" // is ""
	Blank        Code = "blank"        // has spaces alone
	TooShort     Code = "too_short"
	TooLong      Code = "too_long"
	Format       Code = "invalid_format"
	Enum         Code = "invalid_enum"  // is not in a closed list
	OutOfRange   Code = "out_of_range"  // is too small or too large
	Range        Code = "invalid_range" // ends before it begins
	EmptyPatch   Code = "empty_patch"   // names nothing to change
	Luhn         Code = "luhn"
	LooksLikePAN Code = "looks_like_pan" // holds a card number where none belongs
	CardExpired  Code = "card_expired"   // of Tokenize in Go alone: over REST it is a reason_code

	UnknownCurrency Code = "unknown_currency"
	UnknownMerchant Code = "unknown_merchant"
	Undecryptable   Code = "undecryptable"

	PlaceholderNotAllowed Code = "placeholder_not_allowed" // stands where none may
	UnknownPlaceholder    Code = "unknown_placeholder"
)

// The rules of requests over REST alone.
const (
	Null               Code = "null_not_allowed"
	Type               Code = "wrong_type"
	NotAnInteger       Code = "not_an_integer"
	UnknownField       Code = "unknown_field"
	UnknownParameter   Code = "unknown_parameter"
	DuplicateParameter Code = "duplicate_parameter"
	EmptyListItem      Code = "empty_list_item"
)
