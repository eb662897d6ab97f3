package faults_test

import (
	"maps"
	"math/rand/v2"
	"path"
	"slices"
)

// A platter is the content of a disk that is certain, and the changes that were made and not
// synced. A loss of power keeps any part of the changes.
type platter struct {
	inodes map[uint64]*content
	random *rand.Rand
}

// A content is the content of a file or a folder.
type content struct {
	data    []byte            // synced
	names   map[string]uint64 // synced, of a folder
	pending []action
}

func newPlatter(random *rand.Rand) *platter {
	return &platter{map[uint64]*content{1: {}}, random}
}

func (p *platter) at(inode uint64) *content {
	c := p.inodes[inode]
	if c == nil {
		c = new(content)
		p.inodes[inode] = c
	}
	return c
}

// do has the disk do an action.
func (p *platter) do(a action) {
	switch a.what {
	case wrote, truncated:
		c := p.at(a.inode)
		c.pending = append(c.pending, a)
	case linked, unlinked:
		c := p.at(a.folder)
		c.pending = append(c.pending, a)
	case renamed: // into the same folder
		c := p.at(a.folder)
		c.pending = append(c.pending, a)
	case synced, syncFailed:
		c := p.at(a.inode)
		how := kept
		if a.what == syncFailed { // the system forgets pages that it could not write, and never writes them again
			how = sectors
		}
		c.data, c.names, c.pending = c.after(how, p.random), c.namesAfter(how, p.random), nil
	}
}

// A loss says which unsynced changes a loss of power keeps.
type loss uint8

const (
	none    loss = iota
	kept         // all
	sectors      // some sectors, in any order, so that writes are torn
	writes       // some whole writes, in any order
	first        // those up to a time, and a part of the next
	losses
)

const sector = 512

// after returns the content of a file once the power was lost.
func (c *content) after(how loss, random *rand.Rand) []byte {
	if len(c.pending) == 0 || how == none {
		return slices.Clone(c.data)
	}
	data, share, most := slices.Clone(c.data), random.Float64(), random.IntN(len(c.pending)+1)
	for i, a := range c.pending {
		switch {
		case a.what != wrote && a.what != truncated:
		case how == kept, how == first && i < most, how == writes && random.Float64() < share:
			data = a.apply(data)
		case how == sectors && a.what == truncated:
			if random.Float64() < share {
				data = a.apply(data)
			}
		case how == sectors, how == first && i == most:
			for from := 0; from < len(a.data); from += sector {
				if random.Float64() < share {
					part := action{what: wrote, at: a.at + int64(from), data: a.data[from:min(from+sector, len(a.data))]}
					data = part.apply(data)
				} else if how == first {
					break
				}
			}
		}
	}
	return data
}

// namesAfter returns the names in a folder once the power was lost. File systems keep changes of
// names in their order.
func (c *content) namesAfter(how loss, random *rand.Rand) map[string]uint64 {
	names, most := maps.Clone(c.names), len(c.pending)
	if names == nil {
		names = map[string]uint64{}
	}
	switch how {
	case none:
		most = 0
	case sectors, writes, first:
		most = random.IntN(len(c.pending) + 1)
	}
	for _, a := range c.pending[:most] {
		switch a.what {
		case linked:
			names[a.name] = a.inode
		case unlinked:
			delete(names, a.name)
		case renamed:
			if inode, ok := names[a.name]; ok {
				names[a.target] = inode
				delete(names, a.name)
			}
		}
	}
	return names
}

// lose returns the files that a loss of power leaves. A folder has no data.
func (p *platter) lose(how loss, folders map[uint64]bool, random *rand.Rand) map[string][]byte {
	files := map[string][]byte{}
	var walk func(dir string, inode uint64)
	walk = func(dir string, inode uint64) {
		names := p.at(inode).namesAfter(how, random)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			at := path.Join(dir, name)
			if folders[names[name]] {
				files[at] = nil
				walk(at, names[name])
				continue
			}
			files[at] = append([]byte{}, p.at(names[name]).after(how, random)...)
		}
	}
	walk("", 1)
	return files
}
