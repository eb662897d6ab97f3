package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/google/uuid"
)

// Limits of the input.
const (
	MaxSize  = 16 << 20 // bytes of an object; a page of 500 tokens has under 4 MiB
	MaxItems = 1000     // of a list, and members of an object
	MaxInt   = 1<<53 - 1
)

// Read reads output of Append into the struct that v points to. Unknown members are
// ignored. Missing members and null are zero, and so are fields without a tag. null in
// place of the object changes nothing.
//
// An error names the member, and repeats nothing of the input. The struct is zero then.
func Read(what string, data []byte, v any) error {
	if string(data) == "null" {
		return nil
	}
	to := reflect.ValueOf(v).Elem()
	to.SetZero()
	if len(data) > MaxSize {
		return fmt.Errorf("cardvault: %s: has more than %d bytes", what, MaxSize)
	}
	if err := readStruct(data, to); err != nil {
		to.SetZero()
		return fmt.Errorf("cardvault: %s: %w", what, err)
	}
	return nil
}

var (
	errMalformed = errors.New("is malformed")
	errTooMany   = fmt.Errorf("has more than %d items", MaxItems)
)

// partsOf calls each with the values of a list or an object, and with the names of members.
// It stops after MaxItems, so that no more of a text is kept than that.
func partsOf(data []byte, opening, closing json.Delim, each func(name string, value json.RawMessage)) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != opening {
		return errMalformed
	}

	for n := 0; d.More(); n++ {
		if n == MaxItems {
			return errTooMany
		}
		name := ""
		if opening == '{' {
			t, err := d.Token()
			if err != nil {
				return errMalformed
			}
			name, _ = t.(string) // the Decoder takes nothing else
		}
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return errMalformed
		}
		each(name, value)
	}

	if t, err := d.Token(); err != nil || t != closing {
		return errMalformed
	}
	if _, err := d.Token(); err != io.EOF {
		return errMalformed
	}
	return nil
}

// objectOf returns the members of an object.
func objectOf(data []byte) (map[string]json.RawMessage, error) {
	given := map[string]json.RawMessage{}
	err := partsOf(data, '{', '}', func(name string, value json.RawMessage) { given[name] = value })
	if err == errMalformed {
		return nil, isNot("an object")
	}
	return given, err
}

func readStruct(data []byte, to reflect.Value) error {
	given, err := objectOf(data)
	if err != nil {
		return err
	}
	return readMembers(given, to)
}

func readMembers(given map[string]json.RawMessage, to reflect.Value) error {
	all := membersOf(to.Type())
	for i := range all {
		m := &all[i]
		value := given[m.name]
		if len(value) == 0 || string(value) == "null" {
			continue
		}
		if err := m.read(value, to); err != nil {
			return fmt.Errorf("%s %w", m.name, err)
		}
	}
	return nil
}

// isNot is the error of a value of another kind.
func isNot(wanted string) error { return errors.New("is not " + wanted) }

// read reads the value of a member into its field of a struct.
func (m *member) read(value []byte, to reflect.Value) error {
	f := m.of(to)

	switch m.kind {
	case intKind:
		return readInt(value, f)
	case uintKind:
		if json.Unmarshal(value, f.Addr().Interface()) != nil {
			return isNot("a number of at least 0")
		}
	case boolKind:
		return m.readFlag(value, f)
	case pointerKind:
		return m.readPointer(value, f, to)
	case structKind:
		return readStruct(value, f)
	case listKind:
		return readList(value, f)
	default:
		return m.readText(value, f)
	}
	return nil
}

func readInt(value []byte, to reflect.Value) error {
	var n int64
	if json.Unmarshal(value, &n) != nil || n < 0 || n > MaxInt || to.OverflowInt(n) {
		return isNot("a number from 0 to 2^53 - 1")
	}
	to.SetInt(n)
	return nil
}

func (m *member) readFlag(value []byte, to reflect.Value) error {
	if m.words == [2]string{} {
		if json.Unmarshal(value, to.Addr().Interface()) != nil {
			return isNot("true or false")
		}
		return nil
	}

	var word string
	i := -1
	if json.Unmarshal(value, &word) == nil {
		i = slices.Index(m.words[:], word)
	}
	if i < 0 {
		return isNot("one of its values")
	}
	to.SetBool(i == 1)
	return nil
}

// readPointer leaves a pointer nil where an object stands for that.
func (m *member) readPointer(value []byte, to, in reflect.Value) error {
	given, err := objectOf(value)
	if err != nil {
		return err
	}
	if len(given) == 0 && m.absent == "{}" {
		return nil
	}

	p := reflect.New(to.Type().Elem())
	if err := readMembers(given, p.Elem()); err != nil {
		return err
	}
	if m.idOf >= 0 {
		in.Field(m.idOf).Set(p.Elem().FieldByName("ID"))
		if len(given) == 1 {
			return nil
		}
	}
	to.Set(p)
	return nil
}

func readList(value []byte, to reflect.Value) error {
	var given []json.RawMessage
	err := partsOf(value, '[', ']', func(_ string, item json.RawMessage) { given = append(given, item) })
	switch {
	case err == errMalformed:
		return isNot("a list")
	case err != nil:
		return err
	}

	to.Set(reflect.MakeSlice(to.Type(), len(given), len(given)))
	for i, value := range given {
		item := to.Index(i)
		m := &member{kind: kindOf(item.Type()), inner: -1}
		var err error
		switch m.kind {
		case pointerKind:
			item.Set(reflect.New(item.Type().Elem()))
			err = readStruct(value, item.Elem())
		case structKind:
			err = readStruct(value, item)
		default:
			err = m.readText(value, item)
		}
		if err != nil {
			return fmt.Errorf("item: %w", err)
		}
	}
	return nil
}

// readText reads a JSON string.
func (m *member) readText(value []byte, to reflect.Value) error {
	var given quoted
	if json.Unmarshal(value, &given) != nil || len(value) == 0 || value[0] != '"' {
		return isNot("a string")
	}

	switch m.kind {
	case textKind:
		to.SetString(string(given))
	case nameKind:
		*to.Addr().Interface().(*card.Name) = card.NewName(given)
		clear(given)
	case idKind:
		id, err := uuid.ParseBytes(given)
		if err != nil || len(given) != len(id.String()) {
			return isNot("an id")
		}
		to.Set(reflect.ValueOf(id))
	case timeKind:
		at, err := time.Parse(time.RFC3339Nano, string(given))
		if err != nil || at.Nanosecond()%1000 != 0 {
			return isNot("a time")
		}
		to.Set(reflect.ValueOf(at.UTC()))
	case rangeKind:
		if to.Addr().Interface().(*netip.Prefix).UnmarshalText(given) != nil {
			return isNot("a range of addresses")
		}
	case hashKind:
		if len(given) != 2*to.Len() {
			return isNot("a hash")
		}
		if _, err := hex.Decode(to.Bytes(), given); err != nil {
			return isNot("a hash")
		}
	case enumKind:
		n := slices.Index(m.values, string(given))
		if n < 0 || string(given) == unnamed {
			return isNot("one of its values")
		}
		to.SetUint(uint64(n))
	}
	return nil
}

// A quoted text is a JSON string that can be overwritten.
type quoted []byte

func (q *quoted) UnmarshalText(b []byte) error {
	*q = append(quoted(nil), b...)
	return nil
}
