package httpapi

import (
	"errors"
	"math"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cardvault/cardvault/invalid"
	"github.com/google/uuid"
)

// errMalformed is the only error for a query that cannot be read, and has no details: the
// query may hold a card number.
var errMalformed = errors.New("httpapi: malformed query")

const maxParams = 256

// A query reads the parameters of a request as fields reads a body.
type query struct {
	params     []param
	violations *violations
}

type param struct {
	name, value string
	asked       bool
}

// read parses a raw query. It takes what url.ParseQuery takes, if it is
// UTF-8, but keeps the order and bounds the number of parameters.
func (q *query) read(raw string, v *violations) error {
	if strings.Contains(raw, ";") || strings.Count(raw, "&") >= maxParams {
		return errMalformed
	}
	*q = query{violations: v}
	for pair := range strings.SplitSeq(raw, "&") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		name, nameErr := url.QueryUnescape(name)
		value, valueErr := url.QueryUnescape(value)
		if nameErr != nil || valueErr != nil || !utf8.ValidString(name) || !utf8.ValidString(value) {
			return errMalformed
		}
		q.params = append(q.params, param{name: name, value: value})
	}
	return nil
}

func (q *query) refuse(name string, code invalid.Code, limits ...any) {
	q.violations.add("query."+name, code, limits...)
}

// all returns the values of a parameter.
func (q *query) all(name string) (values []string) {
	for i := range q.params {
		if p := &q.params[i]; p.name == name {
			p.asked = true
			values = append(values, p.value)
		}
	}
	return values
}

// one returns the value of a parameter that must not be repeated.
func (q *query) one(name string) (string, bool) {
	values := q.all(name)
	if len(values) > 1 {
		q.refuse(name, invalid.DuplicateParameter)
	}
	if len(values) != 1 {
		return "", false
	}
	return values[0], true
}

// text reads a string of min to max characters.
func (q *query) text(name string, min, max int) (string, bool) {
	value, ok := q.one(name)
	if !ok || !q.violations.checkText("query."+name, []byte(value), min, max) {
		return "", false
	}
	return value, true
}

// integer reads a number from min to max, or returns def. Leading zeros are
// digits like any other.
func (q *query) integer(name string, min, max, def int64) int64 {
	value, ok := q.one(name)
	if !ok {
		return def
	}
	if value == "" {
		q.refuse(name, invalid.EmptyString)
		return def
	}
	if !isDigits(value) {
		q.refuse(name, invalid.NotAnInteger)
		return def
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < min || n > max {
		q.refuse(name, invalid.OutOfRange, min, max)
		return def
	}
	return n
}

// id reads an id, zero if the parameter is absent.
func (q *query) id(name string) uuid.UUID {
	value, ok := q.one(name)
	if !ok {
		return uuid.Nil
	}
	id, ok := parseID(value)
	if !ok {
		q.refuse(name, invalid.Format, "an id")
	}
	return id
}

// boolean reads true or false, nil if the parameter is absent.
func (q *query) boolean(name string) *bool {
	value, ok := q.one(name)
	switch {
	case !ok:
		return nil
	case value == "":
		q.refuse(name, invalid.EmptyString)
		return nil
	case value != "true" && value != "false":
		q.refuse(name, invalid.Enum, "true, false")
		return nil
	}
	return new(value == "true")
}

// page reads which part of a list is wanted.
func (q *query) page() (limit, page int64) {
	return q.integer("limit", 1, 500, 50), q.integer("page", 1, math.MaxInt32, 1)
}

// ascending reads the order of a list by a member; the default is descending. The plus of
// the documented values arrives as a space unless it is escaped.
func (q *query) ascending(by string) bool {
	value, ok := q.one("sort")
	if !ok {
		return false
	}
	switch value {
	case by + " asc", by + "+asc":
		return true
	case by + " desc", by + "+desc":
	default:
		q.refuse("sort", invalid.Enum, by+"+asc, "+by+"+desc")
	}
	return false
}

// span reads from and to: the first and the last instant wanted, in UTC. A zero time sets
// no bound.
func (q *query) span() (from, to time.Time) {
	from, _, hasFrom := q.instant("from")
	to, day, hasTo := q.instant("to")
	if day {
		to = to.AddDate(0, 0, 1).Add(-time.Nanosecond)
	}
	if hasFrom && hasTo && from.After(to) {
		q.refuse("from", invalid.Range, "query.to")
	}
	if hasTo && to.IsZero() {
		to = to.Add(time.Nanosecond) // the year 1, but not "no bound"
	}
	return from, to
}

// rfc3339 is what time.Parse does not insist on: two digits for the hour, a
// point before the fraction and no more of it than it keeps, an offset below
// a day. The sign of an offset may have arrived as a space.
var rfc3339 = regexp.MustCompile(
	`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[-+ ]([01]\d|2[0-3]):[0-5]\d)$`)

// instant reads a whole day in UTC, as its first instant, or an instant.
func (q *query) instant(name string) (t time.Time, day, ok bool) {
	value, ok := q.one(name)
	if !ok {
		return t, false, false
	}
	if value == "" {
		q.refuse(name, invalid.EmptyString)
		return t, false, false
	}

	t, err := time.Parse(time.DateOnly, value)
	if err == nil {
		return t, true, true
	}

	if rfc3339.MatchString(value) {
		t, err = time.Parse(time.RFC3339, strings.Replace(value, " ", "+", 1))
	}
	if err != nil {
		q.refuse(name, invalid.Format, "a date (YYYY-MM-DD) or an RFC 3339 time with an offset")
		return time.Time{}, false, false
	}
	return t.UTC(), false, true
}

// listOf reads comma-separated literals out of a closed set, each once. The
// parameter may repeat. Spaces around items do not count.
func listOf[T ~string](q *query, name string, set []T) []T {
	var chosen []T
	for _, value := range q.all(name) {
		for item := range strings.SplitSeq(value, ",") {
			var ok bool
			if chosen, ok = choose(q.violations, "query."+name, []byte(strings.Trim(item, " ")), set, chosen); !ok {
				return nil
			}
		}
	}
	return chosen
}

// done reports every parameter that was never asked for. It is called last.
func (q *query) done() {
	for _, p := range q.params {
		if !p.asked {
			q.refuse(shown([]byte(p.name)), invalid.UnknownParameter)
		}
	}
}
