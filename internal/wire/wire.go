// Package wire is the JSON of the REST API: [Append] writes a value, for answers,
// deliveries and the MarshalJSON of its type, and [Read] reads it.
//
// The members of a struct are its fields with a tag wire, in their order. A member is always
// present. It is null if it is an empty string or name, a zero time, id or hash, or a nil
// pointer. A tag names the member, and may go on after a comma:
//
//	`wire:"last_status_code,null"`         0 is null
//	`wire:"authentication_data,empty"`     a nil pointer is {}
//	`wire:"token,id=TokenID"`              a nil pointer is {"id":…} of the field TokenID
//	`wire:"damaged,left_out"`              an empty list is left out
//	`wire:"status,enabled|disabled"`       words for false and true
//	`wire:"expiry_month+expiry_year"`      the fields of a struct, as members beside the others
//
// encoding/json costs three times as much for a token, and sixty allocations for a page. Its
// errors repeat the input.
package wire

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/google/uuid"
)

// A Page is a page of a list.
type Page[T any] struct {
	Items      []T         `wire:"data"`
	Damaged    []uuid.UUID `wire:"damaged,left_out"`
	Pagination Pagination  `wire:"pagination"`
}

// A Pagination says which page of a list it is.
type Pagination struct {
	Page       int   `wire:"current_page"`
	Limit      int   `wire:"page_size"`
	TotalItems int64 `wire:"total_items"`
	TotalPages int64 `wire:"total_pages"`
}

// A kind says how a member is written.
type kind uint8

const (
	textKind kind = iota
	nameKind
	idKind
	timeKind
	enumKind // a number that has a name
	intKind
	uintKind
	boolKind
	hashKind
	rangeKind // of addresses
	pointerKind
	structKind
	listKind
)

// A member is a field of a struct, or a field in one of its fields.
type member struct {
	name  string
	begin string // comma and name, as they are written
	field int
	inner int // in the field; -1: the field itself
	kind  kind

	absent string // written for zero; "" writes zero like any value
	idOf   int    // of a nil pointer: the field that holds the id; -1: none
	words  [2]string
	values []string // of an enum
	texts  []string // of an enum, as they are written
}

var (
	ids   = reflect.TypeFor[uuid.UUID]()
	times = reflect.TypeFor[time.Time]()
	names = reflect.TypeFor[card.Name]()

	ranges = reflect.TypeFor[netip.Prefix]()

	named = reflect.TypeFor[fmt.Stringer]()
)

// known has the members of each type that was written or read.
var known sync.Map // of []member, by reflect.Type

// membersOf returns the members of a struct.
func membersOf(t reflect.Type) []member {
	if m, ok := known.Load(t); ok {
		return m.([]member)
	}

	var all []member
	for i := range t.NumField() {
		f := t.Field(i)
		tag, ok := f.Tag.Lookup("wire")
		if !ok {
			continue
		}
		called, option, _ := strings.Cut(tag, ",")
		if parts := strings.Split(called, "+"); len(parts) > 1 {
			for inner, part := range parts {
				all = append(all, member{name: part, begin: beginOf(part), field: i, inner: inner, kind: kindOf(f.Type.Field(inner).Type), idOf: -1})
			}
			continue
		}
		all = append(all, newMember(t, i, called, option))
	}
	known.Store(t, all)
	return all
}

func beginOf(name string) string { return `,"` + name + `":` }

func newMember(t reflect.Type, field int, called, option string) member {
	m := member{name: called, begin: beginOf(called), field: field, inner: -1, kind: kindOf(t.Field(field).Type), idOf: -1}
	switch m.kind {
	case textKind, nameKind, idKind, timeKind, hashKind, pointerKind:
		m.absent = "null"
	case enumKind:
		m.values, m.texts = valuesOf(t.Field(field).Type)
	}

	switch no, yes, words := strings.Cut(option, "|"); {
	case words:
		m.words = [2]string{no, yes}
	case option == "null":
		m.absent = "null"
	case option == "empty":
		m.absent = "{}"
	case option == "left_out":
		m.absent = leftOut
	case strings.HasPrefix(option, "id="):
		f, ok := t.FieldByName(option[len("id="):])
		if !ok {
			panic("wire: " + t.String() + " has no field for the id of " + called)
		}
		m.idOf = f.Index[0]
	case option != "":
		panic("wire: " + t.String() + " has an unknown option for " + called)
	}
	return m
}

// unnamed is the name of numbers that have none: see package enum.
const unnamed = "unknown"

// valuesOf returns the name of each number of an enum, and how it is written.
func valuesOf(t reflect.Type) (values, texts []string) {
	v := reflect.New(t).Elem()
	for n := range 256 {
		v.SetUint(uint64(n))
		name := v.Interface().(fmt.Stringer).String()
		text := "null"
		if name != unnamed {
			text = string(AppendString(nil, name))
		}
		values, texts = append(values, name), append(texts, text)
	}
	return values, texts
}

// leftOut is the absent of a member that is left out.
const leftOut = "-"

func kindOf(t reflect.Type) kind {
	switch {
	case t == ids:
		return idKind
	case t == times:
		return timeKind
	case t == names:
		return nameKind
	case t == ranges:
		return rangeKind
	case t.Kind() == reflect.Uint8 && t.Implements(named):
		return enumKind
	case t.Kind() == reflect.Array && t.Elem().Kind() == reflect.Uint8:
		return hashKind
	}

	switch t.Kind() {
	case reflect.String:
		return textKind
	case reflect.Int, reflect.Int64:
		return intKind
	case reflect.Uint64:
		return uintKind
	case reflect.Bool:
		return boolKind
	case reflect.Pointer:
		return pointerKind
	case reflect.Struct:
		return structKind
	case reflect.Slice:
		return listKind
	}
	panic("wire: no JSON for " + t.String())
}

// Append appends the object of the struct that v points to.
func Append(b []byte, v any) []byte {
	s := reflect.ValueOf(v).Elem()
	return appendStruct(b, s, membersOf(s.Type()))
}

func appendStruct(b []byte, v reflect.Value, all []member) []byte {
	b = append(b, '{')
	for i := range all {
		b = all[i].append(b, v)
	}
	return append(b, '}')
}

// of returns the field of a struct that is the member.
func (m *member) of(v reflect.Value) reflect.Value {
	f := v.Field(m.field)
	if m.inner >= 0 {
		f = f.Field(m.inner)
	}
	return f
}

// open appends the beginning of the member.
func (m *member) open(b []byte) []byte {
	if b[len(b)-1] == '{' {
		return append(b, m.begin[len(","):]...)
	}
	return append(b, m.begin...)
}

// append appends the member of a struct. It returns b, and takes no pointer to it: that would
// cost more than the member.
func (m *member) append(b []byte, v reflect.Value) []byte {
	f := m.of(v)
	if m.absent != "" && m.isAbsent(f) {
		return m.appendAbsent(b, v)
	}

	b = m.open(b)
	switch m.kind {
	case textKind:
		return AppendString(b, f.String())
	case nameKind:
		return AppendString(b, hiding.Of(as[card.Name](f)))
	case idKind:
		return appendID(b, uuid.UUID(f.Bytes()))
	case timeKind:
		return appendTime(b, as[time.Time](f))
	case enumKind:
		return append(b, m.texts[f.Uint()]...)
	case intKind:
		return strconv.AppendInt(b, f.Int(), 10)
	case uintKind:
		return strconv.AppendUint(b, f.Uint(), 10)
	case boolKind:
		return m.appendFlag(b, f.Bool())
	case hashKind:
		return append(hex.AppendEncode(append(b, '"'), f.Bytes()), '"')
	case pointerKind:
		f = f.Elem()
		return appendStruct(b, f, membersOf(f.Type()))
	case structKind:
		return appendStruct(b, f, membersOf(f.Type()))
	case listKind:
		return appendList(b, f)
	case rangeKind:
		return appendRange(b, f)
	}
	panic("wire: member of an unknown kind")
}

// isAbsent reports whether f is what a member that can be absent is then.
func (m *member) isAbsent(f reflect.Value) bool {
	switch m.kind {
	case textKind, listKind:
		return f.Len() == 0
	case pointerKind:
		return f.IsNil()
	case nameKind:
		return as[card.Name](f).IsZero()
	case timeKind:
		return as[time.Time](f).IsZero()
	}
	return f.IsZero()
}

// as returns a field of type T. Unlike Interface it allocates nothing.
func as[T any](f reflect.Value) T {
	v, _ := reflect.TypeAssert[T](f)
	return v
}

func (m *member) appendAbsent(b []byte, v reflect.Value) []byte {
	if m.absent == leftOut {
		return b
	}
	b = m.open(b)
	if m.idOf < 0 || v.Field(m.idOf).IsZero() {
		return append(b, m.absent...)
	}
	o := Object{b}
	o.Open()
	o.ID("id", uuid.UUID(v.Field(m.idOf).Bytes()))
	o.Close()
	return o.B
}

func (m *member) appendFlag(b []byte, is bool) []byte {
	switch {
	case m.words == [2]string{}:
		return strconv.AppendBool(b, is)
	case is:
		return AppendString(b, m.words[1])
	}
	return AppendString(b, m.words[0])
}

// appendRange appends a range of addresses as a string in CIDR notation.
func appendRange(b []byte, f reflect.Value) []byte {
	return append(as[netip.Prefix](f).AppendTo(append(b, '"')), '"')
}

// appendList appends a list of strings, ids, ranges, structs or pointers to structs, null for nil.
func appendList(b []byte, items reflect.Value) []byte {
	of := items.Type().Elem()
	var all []member
	each := kindOf(of)
	switch each {
	case structKind:
		all = membersOf(of)
	case pointerKind:
		all = membersOf(of.Elem())
	}

	b = append(b, '[')
	for i := range items.Len() {
		if i > 0 {
			b = append(b, ',')
		}
		switch item := items.Index(i); each {
		case textKind:
			b = AppendString(b, item.String())
		case idKind:
			b = appendID(b, uuid.UUID(item.Bytes()))
		case rangeKind:
			b = appendRange(b, item)
		case structKind:
			b = appendStruct(b, item, all)
		case pointerKind:
			if item.IsNil() {
				b = append(b, "null"...)
				continue
			}
			b = appendStruct(b, item.Elem(), all)
		default:
			panic("wire: list of an unknown kind")
		}
	}
	return append(b, ']')
}
