package pgstore

import "sync"

// A memory holds rows as they were when last read, for the reads of Updates. Whether a row
// is still current is checked with the writes. The rows are sealed.
type memory struct {
	lists   *arranger // hears which lists are long
	divided bool      // keys have accounts

	mu   sync.Mutex
	rows map[key]*row // under mu
}

const (
	memoryRows = 4096
	memoryRow  = 4 << 10 // bytes; larger rows are not remembered
)

func (m *memory) recall(k key) *row {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rows[k]
}

func (m *memory) keyOf(r *row) key {
	if m.divided {
		return key{r.kind, r.id, r.account}
	}
	return key{kind: r.kind, id: r.id}
}

// remember keeps a row. A damaged row is read again, since a repair by SQL may leave its stamp.
func (m *memory) remember(r *row) {
	at := m.keyOf(r)
	switch {
	case r.damaged:
		m.forget(at)
		return
	case r.size() > memoryRow:
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.rows) >= memoryRows && m.rows[at] == nil {
		for k := range m.rows { // any
			delete(m.rows, k)
			break
		}
	}
	m.rows[at] = r
}

func (m *memory) forget(k key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.rows, k)
}

// notice keeps the parts of an answer that later reads can use.
func (m *memory) notice(q *question, a *answer) {
	switch {
	case q.scan != 0: // would push out rows that are read again
	case q.list == nil:
		for _, r := range a.rows {
			m.remember(r)
		}
	case a.tail > 2*longTail:
		m.lists.note(*q.list, q.high)
	}
}
