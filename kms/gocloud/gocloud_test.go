package gocloud_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/keytest"
	"github.com/cardvault/cardvault/kms/gocloud"
	"github.com/cardvault/cardvault/store/memstore"
	"gocloud.dev/gcerrors"
	"gocloud.dev/secrets"
	"gocloud.dev/secrets/localsecrets"
)

func TestContract(t *testing.T) {
	open := func() func(testing.TB) cardvault.KeyWrapper {
		key, err := localsecrets.NewRandomKey()
		if err != nil {
			t.Fatal(err)
		}
		return func(t testing.TB) cardvault.KeyWrapper {
			keeper := localsecrets.NewKeeper(key)
			t.Cleanup(func() { keeper.Close() })
			return gocloud.FromKeeper("cards", keeper)
		}
	}
	keytest.Run(t, keytest.Harness{Open: open(), Other: open()})
}

// A driver of gocloud.dev has faults in the calls that are left of fails.
type driver struct {
	*secrets.Keeper
	fails int
	code  gcerrors.ErrorCode
}

var errService = errors.New("the service says no")

func (d *driver) Encrypt(ctx context.Context, text []byte) ([]byte, error) {
	if d.fails > 0 {
		d.fails--
		return nil, errService
	}
	return d.Keeper.Encrypt(ctx, text)
}

func (d *driver) Decrypt(ctx context.Context, text []byte) ([]byte, error) {
	if d.fails > 0 {
		d.fails--
		return nil, errService
	}
	return d.Keeper.Decrypt(ctx, text)
}

func (*driver) ErrorAs(error, any) bool              { return false }
func (d *driver) ErrorCode(error) gcerrors.ErrorCode { return d.code }

var dataKey = bytes.Repeat([]byte{7}, 32)

// TestFaults: ErrWrongKey is what a driver says of the text, and, where it says nothing,
// what the key does while it works.
func TestFaults(t *testing.T) {
	var foreign []byte
	var key [2][32]byte
	for i := range key {
		var err error
		if key[i], err = localsecrets.NewRandomKey(); err != nil {
			t.Fatal(err)
		}
	}
	foreign, err := gocloud.FromKeeper("cards", localsecrets.NewKeeper(key[1])).Wrap(t.Context(), dataKey, nil)
	if err != nil {
		t.Fatal(err)
	}
	const always = 1 << 10
	for _, c := range []struct {
		what        string
		code        gcerrors.ErrorCode
		fails       int
		other       bool // the text is another key's
		ok, isWrong bool
	}{
		{"works", gcerrors.Unknown, 0, false, true, false},
		{"down", gcerrors.Unknown, always, false, false, false},
		{"down for one call", gcerrors.Unknown, 1, false, true, false},
		{"another key", gcerrors.Unknown, 0, true, false, true},
		{"another key, and down", gcerrors.Unknown, always, true, false, false},
		{"says that the text is invalid", gcerrors.InvalidArgument, always, false, false, true},
		{"permission denied", gcerrors.PermissionDenied, always, false, false, false},
		{"no such key", gcerrors.NotFound, always, false, false, false},
		{"disabled", gcerrors.FailedPrecondition, always, false, false, false},
		{"overloaded", gcerrors.ResourceExhausted, 1, false, false, false},
		{"internal error", gcerrors.Internal, always, true, false, false},
	} {
		d := &driver{Keeper: localsecrets.NewKeeper(key[0]), code: c.code}
		w := gocloud.FromKeeper("cards", secrets.NewKeeper(d))
		wrapped, err := gocloud.FromKeeper("cards", localsecrets.NewKeeper(key[0])).Wrap(t.Context(), dataKey, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.other {
			wrapped = foreign
		}
		d.fails = c.fails
		got, err := w.Unwrap(t.Context(), wrapped, nil)
		if c.ok != (err == nil && bytes.Equal(got, dataKey)) || errors.Is(err, cardvault.ErrWrongKey) != c.isWrong {
			t.Errorf("%s: %v", c.what, err)
		}
		d.fails = c.fails
		if _, err := w.Wrap(t.Context(), dataKey, nil); (err == nil) != (c.fails == 0) || errors.Is(err, cardvault.ErrWrongKey) {
			t.Errorf("Wrap, %s: %v", c.what, err)
		}
	}
}

// A driver may also be one of Azure, AWS or Google.
func ExampleFromKeeper() {
	key, err := localsecrets.NewRandomKey()
	if err != nil {
		fmt.Println(err)
		return
	}
	keeper := localsecrets.NewKeeper(key) // or secrets.OpenKeeper
	defer keeper.Close()

	v, err := cardvault.New(context.Background(), memstore.New(), cardvault.WrappedBy(gocloud.FromKeeper("azure/cards", keeper)), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer v.Close()
	fmt.Println(v.Mode())
	// Output: live
}
