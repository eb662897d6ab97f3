package simnet

import (
	"fmt"
	"math"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/updater"
)

// An issuer describes the numbers of a scheme's cards and network tokens: IIN and number of
// digits. Ranges of network tokens differ from the ranges of test cards.
type issuer struct {
	slug        string
	cards       string
	cardDigits  int
	tokens      string
	tokenDigits int
}

var issuers = [...]issuer{
	card.VISA:            {"visa", "411111", 16, "489500", 16},
	card.Mastercard:      {"mastercard", "555555", 16, "548098", 16},
	card.AmericanExpress: {"american-express", "378282", 15, "379900", 15},
	card.Discover:        {"discover", "601111", 16, "601100", 16},
	card.DinersClub:      {"diners-club", "362272", 14, "364900", 16},
	card.JCB:             {"jcb", "356600", 16, "358900", 16},
	card.UnionPay:        {"unionpay", "620000", 16, "628900", 16},
}

func known(s card.Scheme) bool { return int(s) < len(issuers) && issuers[s].cards != "" }

// ScenarioPAN returns the test card number of a scenario, 0 to 999, for a scheme.
// It panics for any other scenario, and for card.UnknownScheme.
func ScenarioPAN(s card.Scheme, code int) card.PAN {
	if !known(s) || code < 0 || code > 999 {
		panic("simnet: no such scenario or scheme")
	}
	is := issuers[s]
	digits := fmt.Appendf(nil, "%s%0*d", is.cards, is.cardDigits-len(is.cards)-1, code)
	return card.NewPAN(append(digits, iin.CheckDigit(digits)))
}

// scenarioOf returns the scenario of a card, or 0.
func scenarioOf(of card.Scheme, digits []byte) (code int) {
	if !known(of) {
		return 0
	}
	is, end := issuers[of], len(digits)-1
	if len(digits) != is.cardDigits || string(digits[:6]) != is.cards {
		return 0
	}
	for _, d := range digits[6:end] {
		code = 10*code + int(d-'0') // of 9 digits at most
	}
	if scenarios[code] == nil {
		return 0
	}
	return code
}

// A scenario is the behaviour of a test card. The zero value becomes active at once.
type scenario struct {
	behaviour
	identified bool // refused unless the cardholder was identified
	lost       bool // the first answer is lost
	binding    bool // device binding is supported

	pending  bool
	steps    []step
	silent   bool // the steps send no notices
	reversed bool // notices come twice, in reverse order, with the last step

	cryptogram behaviour
	reported   updater.Kind // by the account updater; 0: no match
}

// A behaviour is a way in which a call fails.
type behaviour struct {
	refused     int // how many are refused, by reason
	reason      network.Error
	slow, hangs bool
	noECI       bool // cryptograms only
}

// refusal returns the error of a call that is refused.
func (b *behaviour) refusal() error { e := b.reason; return &e }

// A step is something that happens to a network token some time after it was
// provisioned.
type step struct {
	after time.Duration
	kind  network.NoticeKind
}

const (
	always   = math.MaxInt
	slowness = 2 * time.Second
	later    = 2 * time.Second
)

var (
	notEligible = network.Error{Source: network.SourceScheme, Code: network.CodeCardNotEligible, SchemeCode: "PAN_INELIGIBLE"}
	notAllowed  = network.Error{Source: network.SourceScheme, Code: network.CodeCardNotAllowed, SchemeCode: "PAN_PROVISIONING_COUNT_EXCEEDED"}
	declined    = network.Error{Source: network.SourceScheme, Code: network.CodeDeclined, SchemeCode: "DECLINED"}
	unverified  = network.Error{Source: network.SourceScheme, Code: network.CodeCardVerificationFailed, SchemeCode: "CARD_VERIFICATION_FAILED"}
	unavailable = network.Error{Source: network.SourceScheme, Code: network.CodeSchemeUnavailable, SchemeCode: "SERVICE_UNAVAILABLE", Retryable: true}
	notEnrolled = network.Error{Source: network.SourceConfiguration, Code: network.CodeMerchantNotEnrolled}
)

// scenarios are the test cards, by the number within their prefix.
var scenarios = map[int]*scenario{
	0: {},

	1: {pending: true, steps: []step{{later, network.NoticeActivated}}},
	2: {pending: true, steps: []step{{later, network.NoticeActivated}}, silent: true},

	10: {behaviour: behaviour{refused: always, reason: notEligible}},
	11: {behaviour: behaviour{refused: always, reason: notAllowed}},
	12: {behaviour: behaviour{refused: always, reason: declined}},
	13: {behaviour: behaviour{refused: 1, reason: declined}},
	14: {behaviour: behaviour{refused: 2, reason: unavailable}},
	15: {behaviour: behaviour{refused: always, reason: unavailable}},
	20: {behaviour: behaviour{refused: always, reason: notEnrolled}},
	21: {behaviour: behaviour{refused: 1, reason: notEnrolled}},

	30: {steps: []step{{later, network.NoticeSuspended}}},
	31: {steps: []step{{later, network.NoticeSuspended}, {2 * later, network.NoticeResumed}}},
	32: {steps: []step{{later, network.NoticeDeleted}}},
	33: {steps: []step{{later, network.NoticeInvalidated}}, reported: updater.Closed},
	34: {steps: []step{{later, network.NoticeCardReplaced}}, reported: updater.Updated},
	35: {steps: []step{{later, network.NoticeCardRenewed}}, reported: updater.ExpiryChanged},
	36: {steps: []step{{later, network.NoticeArtChanged}}},
	37: {steps: []step{{later, network.NoticeTokenRenewed}}},

	40: {cryptogram: behaviour{refused: always, reason: declined}},
	41: {cryptogram: behaviour{refused: always, reason: notEnrolled}},
	42: {cryptogram: behaviour{slow: true}},
	43: {cryptogram: behaviour{hangs: true}},
	44: {cryptogram: behaviour{refused: 2, reason: unavailable}},
	45: {cryptogram: behaviour{noECI: true}},

	50: {behaviour: behaviour{slow: true}},
	51: {behaviour: behaviour{hangs: true}},
	60: {steps: []step{{later, network.NoticeSuspended}, {2 * later, network.NoticeResumed}}, reversed: true},
	61: {lost: true},
	70: {identified: true, behaviour: behaviour{reason: unverified}},
	71: {binding: true},

	80: {}, 81: {}, 82: {}, // are about pseudo card numbers

	90: {reported: updater.Updated},
	91: {reported: updater.ExpiryChanged},
	92: {reported: updater.Closed},
	93: {reported: updater.ContactCardholder},
	94: {reported: updater.OptedOut},
}
