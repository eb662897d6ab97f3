package shares_test

import (
	"bytes"
	"context"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/kms/shares"
	"github.com/cardvault/cardvault/store/memstore"
)

// split returns the shares of a random key.
func split(t testing.TB, n, k int) (key []byte, all []shares.Share) {
	t.Helper()
	key = make([]byte, cardvault.KeySize)
	rand.Read(key)
	all, err := shares.Split(key, n, k)
	if err != nil {
		t.Fatal(err)
	}
	return key, all
}

// enter answers prompts with texts, in their order, and with an error once there are no
// more.
func enter(texts ...[]byte) func(context.Context, shares.Prompt) ([]byte, error) {
	return func(context.Context, shares.Prompt) ([]byte, error) {
		if len(texts) == 0 {
			return nil, errNobody
		}
		text := bytes.Clone(texts[0])
		texts = texts[1:]
		return text, nil
	}
}

var errNobody = errors.New("no custodian is left")

func texts(all ...shares.Share) (written [][]byte) {
	for _, s := range all {
		written = append(written, s.Text())
	}
	return written
}

// opens reports whether a keyring is of the key of a vault.
func opens(t testing.TB, keys *cardvault.Keyring, key []byte) bool {
	t.Helper()
	right, err := cardvault.KeyBytes(key)
	if err != nil {
		t.Fatal(err)
	}
	s := memstore.New()
	v, err := cardvault.New(t.Context(), s, right, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	v, err = cardvault.New(t.Context(), s, keys, nil)
	if errors.Is(err, cardvault.ErrWrongKey) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	return v.Close() == nil
}

// TestAnyShares: any k shares give the key, in any order.
func TestAnyShares(t *testing.T) {
	key, all := split(t, 5, 3)
	for a := range all {
		for b := range all {
			for c := range all {
				if a == b || b == c || a == c {
					continue
				}
				keys, err := shares.Collect(t.Context(), enter(texts(all[a], all[b], all[c])...))
				if err != nil || (a < b && b < c) && !opens(t, keys, key) {
					t.Errorf("shares %d, %d, %d: %v", a, b, c, err)
				}
			}
		}
	}
}

func TestSizes(t *testing.T) {
	for _, size := range []struct{ n, k int }{{2, 2}, {3, 2}, {32, 2}, {32, 32}} {
		key, all := split(t, size.n, size.k)
		keys, err := shares.Collect(t.Context(), enter(texts(all[size.n-size.k:]...)...))
		if len(all) != size.n || err != nil || !opens(t, keys, key) {
			t.Errorf("%d of %d: %v", size.k, size.n, err)
		}
		for i, s := range all {
			if s.Number() != i+1 || s.Total() != size.n || s.Needed() != size.k || len(s.Set()) != 20 || s.Set() != all[0].Set() {
				t.Errorf("share %d is number %d of %d, needs %d, set %s", i, s.Number(), s.Total(), s.Needed(), s.Set())
			}
		}
	}
	for _, size := range []struct{ n, k int }{{1, 1}, {3, 1}, {3, 0}, {3, -1}, {2, 3}, {33, 2}, {0, 0}, {-1, -1}, {256 + 3, 2}} {
		if _, err := shares.Generate(size.n, size.k); err == nil {
			t.Errorf("%d of %d is allowed", size.k, size.n)
		}
	}
}

// TestForeign: another implementation of the scheme gives the key back.
func TestForeign(t *testing.T) {
	key, all := split(t, 5, 3)
	order, secret := elliptic.P256().Params().N, new(big.Int)
	for _, s := range all[1:4] {
		numerator, denominator := big.NewInt(1), big.NewInt(1)
		for _, other := range all[1:4] {
			if other.Number() != s.Number() {
				numerator.Mul(numerator, big.NewInt(int64(other.Number())))
				denominator.Mul(denominator, big.NewInt(int64(other.Number()-s.Number())))
			}
		}
		term := new(big.Int).SetBytes(shares.Value(s))
		term.Mul(term, numerator).Mul(term, denominator.ModInverse(denominator.Mod(denominator, order), order))
		secret.Add(secret, term).Mod(secret, order)
	}
	if !bytes.Equal(secret.FillBytes(make([]byte, 32)), key) {
		t.Error("interpolation gives another key")
	}
}

// TestOneShareSaysNothing: the shares of one key differ each time, in every byte but the
// label.
func TestOneShareSaysNothing(t *testing.T) {
	key, first := split(t, 3, 2)
	second, err := shares.Split(key, 3, 2)
	if err != nil {
		t.Fatal(err)
	}
	for i := range first {
		a, b := shares.Value(first[i]), shares.Value(second[i])
		if len(a) != len(key) || bytes.Equal(a, b) || bytes.Equal(a, key) || first[i].Set() == second[i].Set() {
			t.Errorf("share %d does not depend on chance", i+1)
		}
	}
}

// TestMistyped: every wrong character, and every two that changed places, are found.
func TestMistyped(t *testing.T) {
	_, all := split(t, 3, 2)
	text := all[0].Text()
	const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	tried := 0
	wrong := func(edited []byte) {
		t.Helper()
		tried++
		if s, err := shares.Parse(edited); !errors.Is(err, shares.ErrMistyped) || !s.IsZero() {
			t.Fatalf("%q is taken for %q", edited, text)
		}
	}
	for i, c := range text {
		if strings.IndexByte(digits, c) < 0 {
			continue
		}
		for _, d := range []byte(digits + "U!\x00\xff") {
			if d != c {
				edited := bytes.Clone(text)
				edited[i] = d
				wrong(edited)
			}
		}
		if i+1 < len(text) && text[i+1] != c && strings.IndexByte(digits, text[i+1]) >= 0 {
			edited := bytes.Clone(text)
			edited[i], edited[i+1] = edited[i+1], edited[i]
			wrong(edited)
		}
		wrong(append(bytes.Clone(text[:i]), text[i+1:]...))
	}
	for _, edited := range [][]byte{nil, []byte(" "), text[:40], append(bytes.Clone(text), '0'), append(bytes.Clone(text), text...), bytes.Repeat([]byte(" "), 1<<20)} {
		wrong(edited)
	}
	if tried < 80*34 {
		t.Errorf("%d texts were tried", tried)
	}
}

// TestForms: a share may be typed in lower case, in one line, with dashes, and with letters
// that look like digits.
func TestForms(t *testing.T) {
	_, all := split(t, 3, 2)
	text := string(all[0].Text())
	if lines := strings.Split(text, "\n"); len(lines) != 4 || len(lines[0]) != 5*4+4 {
		t.Errorf("%q", text)
	}
	for _, typed := range []string{
		text, strings.ToLower(text), strings.ReplaceAll(text, " ", "-"), strings.NewReplacer(" ", "", "\n", "").Replace(text),
		strings.ReplaceAll(text, "\n", "\r\n") + "\r\n", strings.NewReplacer("0", "O", "1", "l").Replace(text), strings.NewReplacer("0", "o", "1", "I").Replace(text),
	} {
		s, err := shares.Parse([]byte(typed))
		if err != nil || !bytes.Equal(s.Text(), []byte(text)) {
			t.Errorf("%q: %v", typed, err)
		}
	}
	if zero := (shares.Share{}); zero.Text() != nil || zero.Set() != "" || zero.Number() != 0 || zero.Total() != 0 || zero.Needed() != 0 {
		t.Error("the zero share is of a set")
	}
}

// TestPaper: shares that were written down with the first version give their key for ever.
func TestPaper(t *testing.T) {
	keys, err := shares.Collect(t.Context(), enter([]byte(paper[2]), []byte(paper[0])))
	if err != nil || !opens(t, keys, bytes.Repeat([]byte{0xc5}, 32)) {
		t.Error(err)
	}
}

func TestKeys(t *testing.T) {
	for _, key := range [][]byte{nil, make([]byte, 31), make([]byte, 33), make([]byte, 32), bytes.Repeat([]byte{0xff}, 32)} {
		if _, err := shares.Split(key, 3, 2); err == nil {
			t.Errorf("key %x is split", key)
		}
	}
	first, err := shares.Generate(3, 2)
	if err != nil {
		t.Fatal(err)
	}
	second, err := shares.Generate(3, 2)
	if err != nil || first[0].Set() == second[0].Set() {
		t.Errorf("%s, %s, %v", first[0].Set(), second[0].Set(), err)
	}
	if _, err := shares.Collect(t.Context(), enter(texts(first[:2]...)...)); err != nil {
		t.Error(err)
	}
}

// TestProblems: a text that is not taken is asked for again, with the reason, and the shares
// before it count.
func TestProblems(t *testing.T) {
	key, all := split(t, 5, 3)
	_, others := split(t, 5, 3)
	again, err := shares.Split(key, 5, 3) // of the same key
	if err != nil {
		t.Fatal(err)
	}
	mistyped := all[1].Text()
	mistyped[0]++
	answers := [][]byte{all[4].Text(), mistyped, others[0].Text(), again[0].Text(), all[4].Text(), nil, all[1].Text(), all[0].Text()}
	given := [][]byte{}
	var prompts []shares.Prompt
	keys, err := shares.Collect(t.Context(), func(_ context.Context, p shares.Prompt) ([]byte, error) {
		prompts = append(prompts, p)
		given = append(given, answers[0])
		answers = answers[1:]
		return given[len(given)-1], nil
	})
	if err != nil || !opens(t, keys, key) {
		t.Fatal(err)
	}

	want := []struct {
		entered, needed int
		problem         error
	}{{0, 0, nil}, {1, 3, nil}, {1, 3, shares.ErrMistyped}, {1, 3, shares.ErrOtherSet}, {1, 3, shares.ErrOtherSet}, {1, 3, shares.ErrTwice},
		{1, 3, shares.ErrMistyped}, {2, 3, nil}}
	for i, p := range prompts {
		if p.Entered != want[i].entered || p.Needed != want[i].needed || !errors.Is(p.Problem, want[i].problem) || len(p.Numbers) != p.Entered {
			t.Errorf("prompt %d: %+v", i, p)
		}
	}
	if last := prompts[len(prompts)-1]; fmt.Sprint(last.Numbers) != "[5 2]" || last.Set != all[0].Set() {
		t.Errorf("%+v", last)
	}
	for i, text := range given {
		if !bytes.Equal(text, make([]byte, len(text))) {
			t.Errorf("text %d is not erased", i)
		}
	}
}

// TestEnd: a ceremony ends with its context, with an error of a custodian, and after ten
// wrong texts.
func TestEnd(t *testing.T) {
	_, all := split(t, 3, 2)
	if _, err := shares.Collect(t.Context(), enter(all[0].Text())); !errors.Is(err, errNobody) {
		t.Error(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	_, err := shares.Collect(ctx, func(context.Context, shares.Prompt) ([]byte, error) {
		asked++
		cancel()
		return all[0].Text(), nil
	})
	if !errors.Is(err, context.Canceled) || asked != 1 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	if _, err := shares.Collect(ctx, func(context.Context, shares.Prompt) ([]byte, error) { panic("asked") }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}

	asked = 0
	_, err = shares.Collect(t.Context(), func(context.Context, shares.Prompt) ([]byte, error) {
		asked++
		return all[0].Text(), nil
	})
	if !errors.Is(err, shares.ErrTwice) || asked != 11 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}

// TestForged: a share with another value, and a right checksum, gives no keyring.
func TestForged(t *testing.T) {
	_, all := split(t, 3, 2)
	for _, fill := range []byte{1, 0, 0xff} { // 0xff is not a number of the field
		forged := shares.Forge(all[1], bytes.Repeat([]byte{fill}, 32))
		if keys, err := shares.Collect(t.Context(), enter(texts(all[0], forged)...)); !errors.Is(err, shares.ErrForged) || keys != nil {
			t.Errorf("%x: %v", fill, err)
		}
	}
	fewer := shares.Relabel(all[1], 1, 3) // needs 3
	if _, err := shares.Collect(t.Context(), enter(texts(all[0], fewer)...)); !errors.Is(err, errNobody) {
		t.Errorf("a share that needs another number: %v", err)
	}
	for _, label := range []struct{ at, to byte }{{0, 2}, {1, 1}, {1, 4}, {2, 1}, {2, 33}, {3, 0}, {3, 4}} {
		if _, err := shares.Parse(shares.Relabel(all[0], label.at, label.to).Text()); !errors.Is(err, shares.ErrMistyped) {
			t.Errorf("label %v: %v", label, err)
		}
	}
}

// Five custodians get a share each. Whenever the vault is opened, three of them come.
func Example() {
	all, err := shares.Generate(5, 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	custodians := map[int][]byte{}
	for _, s := range all {
		custodians[s.Number()] = s.Text() // shown to this custodian alone, who writes it down
		s.Wipe()
	}

	present := []int{5, 1, 3}
	keys, err := shares.Collect(context.Background(), func(_ context.Context, p shares.Prompt) ([]byte, error) {
		return custodians[present[p.Entered]], nil // typed by this custodian alone
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	v, err := cardvault.New(context.Background(), memstore.New(), keys, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer v.Close()
	fmt.Println(v.Mode())
	// Output: live
}
