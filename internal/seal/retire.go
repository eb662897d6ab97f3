package seal

import "time"

// Term returns the key of a number, or nil.
func (s Series) Term(number uint32) *Term {
	for i := range s {
		if s[i].Number == number {
			return &s[i]
		}
	}
	return nil
}

// Close returns a copy of k in which a former master key is closed.
func (k *Keys) Close(number uint32, at time.Time) *Keys {
	next := k.after()
	t := next.Masters.Term(number)
	t.State, t.Closed = Closed, at
	return next
}

// Destroy returns a copy of k without former master keys of some numbers.
func (k *Keys) Destroy(at time.Time, numbers ...uint32) *Keys {
	next := k.after()
	for _, number := range numbers {
		t := next.Masters.Term(number)
		t.State, t.Key, t.Destroyed = Destroyed, Key{}, at
	}
	return next
}
