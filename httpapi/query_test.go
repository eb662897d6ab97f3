package httpapi

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	schemes  = []string{"VISA", "American Express", "Unknown"}
	statuses = []string{"active", "pending"}
)

type filters struct {
	limit, page    int64
	ascending      bool
	from, to       time.Time
	status, scheme []string
	key            string
}

func readFilters(q *query) (f filters) {
	f.limit, f.page = q.page()
	f.ascending = q.ascending("created_at")
	f.from, f.to = q.span()
	f.status = listOf(q, "network_token_status", statuses)
	f.scheme = listOf(q, "scheme", schemes)
	f.key, _ = q.text("business_key", 1, 255)
	q.done()
	return f
}

func TestQuery(t *testing.T) {
	tests := []struct{ raw, want string }{
		{"", ""},
		{"&&limit=1&", ""},

		{"limit=1", ""},
		{"limit=500&page=2147483647", ""},
		{"limit=050", ""},
		{"limit=0", "query.limit out_of_range"},
		{"limit=501", "query.limit out_of_range"},
		{"limit=99999999999999999999", "query.limit out_of_range"},
		{"page=0", "query.page out_of_range"},
		{"page=2147483648", "query.page out_of_range"},
		{"limit=abc", "query.limit not_an_integer"},
		{"limit=%2B1", "query.limit not_an_integer"},
		{"limit=+1", "query.limit not_an_integer"},
		{"limit=-1", "query.limit not_an_integer"},
		{"limit=1.0", "query.limit not_an_integer"},
		{"limit=1e2", "query.limit not_an_integer"},
		{"limit=0x10", "query.limit not_an_integer"},
		{"limit=1_0", "query.limit not_an_integer"},
		{"limit=%D9%A1", "query.limit not_an_integer"},
		{"limit=", "query.limit empty_string"},
		{"limit", "query.limit empty_string"},
		{"limit=1&limit=1", "query.limit duplicate_parameter"},
		{"limit=1&%6Cimit=x", "query.limit duplicate_parameter"},

		{"sort=created_at+asc", ""},
		{"sort=created_at%20desc", ""},
		{"sort=created_at%2Basc", ""},
		{"sort=created_at%2Bdesc", ""},
		{"sort=", "query.sort invalid_enum"},
		{"sort=created_at", "query.sort invalid_enum"},
		{"sort=created_at++asc", "query.sort invalid_enum"},
		{"sort=created_at+ASC", "query.sort invalid_enum"},
		{"sort=expires_at+asc", "query.sort invalid_enum"},

		{"scheme=VISA,American+Express", ""},
		{"scheme=VISA&scheme=Unknown&scheme=VISA", ""},
		{"scheme=VISA%2CUnknown", ""},
		{"scheme=+VISA+,+Unknown", ""},
		{"scheme=visa", "query.scheme invalid_enum"},
		{"scheme=American++Express", "query.scheme invalid_enum"},
		{"scheme=VISA%09", "query.scheme invalid_enum"},
		{"scheme=", "query.scheme empty_list_item"},
		{"scheme=VISA&scheme=", "query.scheme empty_list_item"},
		{"scheme=VISA,,Unknown", "query.scheme empty_list_item"},
		{"scheme=VISA,+,Unknown", "query.scheme empty_list_item"},
		{"scheme=VISA,", "query.scheme empty_list_item"},
		{"network_token_status=active,VISA", "query.network_token_status invalid_enum"},

		{"business_key=+a+", ""},
		{"business_key=" + strings.Repeat("%C3%A9", 255), ""},
		{"business_key=" + strings.Repeat("%C3%A9", 256), "query.business_key too_long"},
		{"business_key=", "query.business_key empty_string"},
		{"business_key=+", "query.business_key blank"},
		{"business_key=a%00", "query.business_key invalid_format"},
		{"business_key=a&business_key=a", "query.business_key duplicate_parameter"},

		{"x=1&Limit=1&x=2", "query.x unknown_parameter, query.Limit unknown_parameter"},
		{"4242424242424242=1&=1&a%00=1", "query.? unknown_parameter"},
		{"z=1&page=x&a=1&limit=0", "query.limit out_of_range, query.page not_an_integer, query.z unknown_parameter, query.a unknown_parameter"},
	}
	for _, test := range tests {
		var v violations
		q := new(query)
		err := q.read(test.raw, &v)
		if err != nil {
			t.Errorf("%s: %v", test.raw, err)
			continue
		}
		readFilters(q)
		if got := codes(v); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.raw, got, test.want)
		}
	}
}

func TestQueryMalformed(t *testing.T) {
	for _, raw := range []string{
		"a;b", "limit=1;page=2", ";", "a=%", "a=%4", "a=%zz", "%=1", "a=%FF", "%C3=1", "a=\xff", "a=%ED%A0%80",
		strings.Repeat("&", 256),
	} {
		if err := new(query).read(raw, new(violations)); err != errMalformed {
			t.Errorf("%q: %v", raw, err)
		}
	}
	if err := new(query).read("a=%3B"+strings.Repeat("&", 255), new(violations)); err != nil {
		t.Error(err)
	}
}

func TestQueryValues(t *testing.T) {
	var v violations
	q := new(query)
	err := q.read("", &v)
	if err != nil {
		t.Fatal(err)
	}
	if f := readFilters(q); f.limit != 50 || f.page != 1 || f.ascending || !f.from.IsZero() || !f.to.IsZero() || f.status != nil || f.scheme != nil || f.key != "" {
		t.Errorf("defaults: %+v", f)
	}
	err = q.read("limit=007&page=3&sort=created_at+asc&scheme=Unknown,VISA&scheme=VISA,American+Express&business_key=+a%2Bb", &v)
	if err != nil {
		t.Fatal(err)
	}
	f := readFilters(q)
	if f.limit != 7 || f.page != 3 || !f.ascending || !slices.Equal(f.scheme, []string{"Unknown", "VISA", "American Express"}) || f.key != " a+b" {
		t.Errorf("%+v", f)
	}
	if len(v) > 0 {
		t.Error(v)
	}
}

func TestQuerySpan(t *testing.T) {
	const layout = "2006-01-02T15:04:05.999999999"
	tests := []struct{ raw, from, to string }{
		{"from=2024-02-29&to=2024-02-29", "2024-02-29T00:00:00", "2024-02-29T23:59:59.999999999"},
		{"from=0000-01-01&to=9999-12-31", "0000-01-01T00:00:00", "9999-12-31T23:59:59.999999999"},
		{"from=2024-01-01T00:00:00Z&to=2024-01-01T00:00:00Z", "2024-01-01T00:00:00", "2024-01-01T00:00:00"},
		{"from=2024-01-01T01:30:00%2B02:00", "2023-12-31T23:30:00", ""},
		{"from=2024-01-01T01:30:00+02:00", "2023-12-31T23:30:00", ""},
		{"to=2024-01-01T01:30:00.5+02:00", "", "2023-12-31T23:30:00.5"},
		{"to=2024-01-01T01:30:00-00:30", "", "2024-01-01T02:00:00"},
		{"to=2024-01-01T01:30:00-00:00", "", "2024-01-01T01:30:00"},
		{"to=9999-12-31T23:59:59-23:59", "", "10000-01-01T23:58:59"},
		{"from=0000-01-01T00:00:00%2B00:01", "-0001-12-31T23:59:00", ""},
		{"from=2024-01-01T00:00:00.000001Z", "2024-01-01T00:00:00.000001", ""},
		{"from=2024-01-01T00:00:00.000000001Z", "2024-01-01T00:00:00.000000001", ""},
		{"from=2023-12-31T23:59:59.9999999Z", "2023-12-31T23:59:59.9999999", ""},
		{"from=0000-01-01T00:00:00.0000001Z", "0000-01-01T00:00:00.0000001", ""},
		{"to=2024-01-01T00:00:00.000000999Z", "", "2024-01-01T00:00:00.000000999"},
		{"to=0001-01-01T00:00:00Z", "", "0001-01-01T00:00:00.000000001"},
		// In order, without a microsecond between them.
		{"from=2024-01-01T00:00:00.0000001Z&to=2024-01-01T00:00:00.0000009Z", "2024-01-01T00:00:00.0000001", "2024-01-01T00:00:00.0000009"},
		{"from=2024-01-01T23:59:59.9999995Z&to=2024-01-01", "2024-01-01T23:59:59.9999995", "2024-01-01T23:59:59.999999999"},
	}
	show := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.Format(layout)
	}
	for _, test := range tests {
		var v violations
		q := new(query)
		err := q.read(test.raw, &v)
		if err != nil {
			t.Fatal(err)
		}
		from, to := q.span()
		if show(from) != test.from || show(to) != test.to || len(v) > 0 || from.Location() != time.UTC || to.Location() != time.UTC {
			t.Errorf("%s: from %v to %v, %v", test.raw, from, to, v)
		}
	}
}

func TestQuerySpanRefuses(t *testing.T) {
	for _, value := range []string{
		"20240101", "2023-02-29", "2024-02-30", "2024-13-01", "2024-00-01", "2024-01-00", "2024-1-1", "24-01-01", "10000-01-01", "-0001-01-01",
		"+2024-01-01", " 2024-01-01", "2024-01-01 ", "2024-W01-1", "2024-001", "2024-01", "yesterday", "1704067200",
		"2024-01-01T00:00:00", "2024-01-01T00:00Z", "2024-01-01 00:00:00Z", "2024-01-01t00:00:00Z", "2024-01-01T00:00:00z",
		"2024-01-01T0:00:00Z", "2024-01-01T24:00:00Z", "2024-01-01T23:59:60Z", "2024-01-01T00:60:00Z", "2023-02-29T00:00:00Z",
		"2024-01-01T00:00:00,5Z", "2024-01-01T00:00:00.Z", "2024-01-01T00:00:00.0000000001Z",
		"2024-01-01T00:00:00+24:00", "2024-01-01T00:00:00+02:60", "2024-01-01T00:00:00+0200", "2024-01-01T00:00:00+02", "2024-01-01T00:00:00  02:00",
		"2024-01-01T00:00:00Z+02:00", "2024-01-01T00:00:00 UTC", "2024-01-01T00:00:00\u221202:00", "2024-01-01+02:00", "2024-01-01Z", "4242424242424242",
		"2024-01-01T00:00:00Z\n", "2024-01-01\n",
	} {
		for _, name := range []string{"from", "to"} {
			if got, want := spanCodes(t, name+"="+url.QueryEscape(value)), "query."+name+" invalid_format"; got != want {
				t.Errorf("%q: got %q, want %q", value, got, want)
			}
		}
	}
	for raw, want := range map[string]string{
		"from=":                           "query.from empty_string",
		"to=":                             "query.to empty_string",
		"from=2024-01-01&from=2024-01-01": "query.from duplicate_parameter",
		"from=2024-01-02&to=2024-01-01":   "query.from invalid_range",
		"from=2024-01-01T00:00:00.000001Z&to=2024-01-01T00:00:00Z":          "query.from invalid_range",
		"from=2024-01-01T00:00:00.0000009Z&to=2024-01-01T00:00:00.0000001Z": "query.from invalid_range",
		"from=2024-01-02T00:00:00Z&to=2024-01-01":                           "query.from invalid_range",
		"from=2024-01-01T12:00:00-01:00&to=2024-01-01T12:30:00Z":            "query.from invalid_range",
		"from=9999-01-01&to=0001-01-01T00:00:00Z":                           "query.from invalid_range",
		"from=2024-01-02&to=x":                                              "query.to invalid_format",
	} {
		if got := spanCodes(t, raw); got != want {
			t.Errorf("%s: got %q, want %q", raw, got, want)
		}
	}
}

func spanCodes(t *testing.T, raw string) string {
	var v violations
	q := new(query)
	err := q.read(raw, &v)
	if err != nil {
		t.Fatal(err)
	}
	q.span()
	return codes(v)
}

// url.ParseQuery accepts every query that read accepts, with the same values. The
// converse holds within our limits.
func FuzzQuery(f *testing.F) {
	for _, raw := range []string{
		"", "limit=1&page=2&sort=created_at+asc", "from=2024-02-29&to=2024-02-29T00:00:00.5+02:00", "scheme=VISA,,American%20Express&scheme=",
		"business_key=%C3%A9&x", "a;b", "a=%zz", "=&&a=%00%FF", "to=0001-01-01T00:00:00Z",
	} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		var v violations
		q := new(query)
		err := q.read(raw, &v)
		want, wantErr := url.ParseQuery(raw)
		fits := wantErr == nil && strings.Count(raw, "&") < maxParams
		for name, values := range want {
			fits = fits && validUTF8(append(values, name))
		}
		if accepted := err == nil; accepted != fits {
			t.Fatalf("accepted = %v, by net/url %v: %q", accepted, fits, raw)
		}
		if err != nil {
			return
		}
		got := url.Values{}
		for _, p := range q.params {
			got.Add(p.name, p.value)
		}
		if got.Encode() != want.Encode() {
			t.Fatalf("%q: got %v, want %v", raw, got, want)
		}

		r := readFilters(q)
		if r.limit < 1 || r.limit > 500 || r.page < 1 || len(r.scheme) > len(schemes) || len(r.status) > len(statuses) {
			t.Errorf("%q: %+v", raw, r)
		}
		if len(v) == 0 && want.Has("to") && r.to.IsZero() {
			t.Errorf("%q: a bound is ignored", raw)
		}
		for i, x := range v {
			if messages[x.Code] == "" || strings.Contains(x.Message, "%!") || !strings.HasPrefix(x.Field, "query.") {
				t.Errorf("%+v", x)
			}
			if slices.ContainsFunc(v[:i], func(y violation) bool { return y.Field == x.Field }) {
				t.Errorf("%s twice", x.Field)
			}
		}
	})
}

func validUTF8(list []string) bool {
	return !slices.ContainsFunc(list, func(s string) bool { return strings.ToValidUTF8(s, "") != s })
}
