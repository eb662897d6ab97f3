package faults_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// An action is one change that a process made to a disk, in the order of its calls.
type action struct {
	what         sort
	inode        uint64 // written, synced or named
	folder, into uint64 // of name and target
	name, target string
	at           int64 // of data; the size of a truncation
	data         []byte
	line         int // of a line: its number in the log
}

// A sort of action.
type sort uint8

const (
	wrote sort = iota + 1
	truncated
	synced
	syncFailed
	linked // a name was given: also to a new file or folder
	unlinked
	renamed
	logged // a line of the log of acknowledged operations: not on the disk
	read   // changes nothing, and is no action of a disk
)

func (s sort) String() string {
	return [...]string{"", "write", "truncate", "sync", "failed sync", "link", "unlink", "rename", "log", "read"}[s]
}

// A disk is a file system in memory. It keeps every change in its order, and fails calls on
// demand. The process that works on it must be another one: a page fault in a mapped file waits
// for this one.
type disk struct {
	dir string

	mu      sync.Mutex
	actions []action
	lines   []line
	torn    []byte // the log behind its last whole line
	folders map[uint64]bool
	last    uint64 // inode
	calls   int    // that change something, and were not written to the log
	fail    func(call int, what sort) syscall.Errno

	// If forgets is set, the system forgets now and then what it has read of a file, so that it
	// reads mapped files too.
	forgets    bool
	forgetting sync.WaitGroup
}

const logName = "log"

// mount mounts a new disk. A machine that cannot do so skips the test, which fails with CI=true.
func mount(t *testing.T) *disk {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Getuid() != 0 {
		t.Skipf("A disk that fails needs /dev/fuse and root: %v, user %d", err, os.Getuid())
	}

	d := &disk{dir: t.TempDir(), folders: map[uint64]bool{1: true}, last: 1}
	forever := time.Hour
	server, err := fs.Mount(d.dir, &node{disk: d}, &fs.Options{
		EntryTimeout: &forever, AttrTimeout: &forever,
		RootStableAttr: &fs.StableAttr{Ino: 1},
		MountOptions:   fuse.MountOptions{DirectMountStrict: true, MaxWrite: 1 << 20, FsName: "faults", DisableXAttrs: true},
	})
	if err != nil {
		t.Skipf("No file system can be mounted: %v", err)
	}
	closeOnExec(t)
	t.Cleanup(func() {
		d.forgetting.Wait()
		if err := server.Unmount(); err != nil { // a process that hangs may hold it
			t.Errorf("unmount: %v", errors.Join(err, syscall.Unmount(d.dir, syscall.MNT_DETACH)))
		}
	})
	return d
}

// closeOnExec keeps the other process from inheriting the file system that it works on. If this one
// were killed, that one would wait for itself, and nothing could end it.
func closeOnExec(t *testing.T) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if target, _ := os.Readlink("/proc/self/fd/" + f.Name()); target != "/dev/fuse" {
			continue
		}
		fd, err := strconv.Atoi(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		syscall.CloseOnExec(fd)
	}
}

// add notes an action, or fails it. d.mu must be held.
func (d *disk) add(a action) syscall.Errno {
	d.calls++
	if d.fail != nil {
		if errno := d.fail(d.calls, a.what); errno != 0 {
			if a.what == synced {
				a.what = syncFailed
				d.actions = append(d.actions, a)
			}
			return errno
		}
	}
	d.actions = append(d.actions, a)
	return 0
}

// log takes what the process has written to the log.
func (d *disk) log(data []byte) {
	d.torn = append(d.torn, data...)
	for {
		text, rest, whole := strings.Cut(string(d.torn), "\n")
		if !whole {
			return
		}
		d.torn = []byte(rest)
		d.actions = append(d.actions, action{what: logged, line: len(d.lines)})
		d.lines = append(d.lines, parseLine(text))
	}
}

// A node is a file or a folder of a disk.
type node struct {
	fs.Inode
	disk *disk
	mode uint32
	data []byte // of a file, guarded by disk.mu
	log  bool
}

var (
	_ fs.NodeCreater   = (*node)(nil)
	_ fs.NodeFsyncer   = (*node)(nil)
	_ fs.NodeGetattrer = (*node)(nil)
	_ fs.NodeLinker    = (*node)(nil)
	_ fs.NodeMkdirer   = (*node)(nil)
	_ fs.NodeOpener    = (*node)(nil)
	_ fs.NodeReader    = (*node)(nil)
	_ fs.NodeRenamer   = (*node)(nil)
	_ fs.NodeRmdirer   = (*node)(nil)
	_ fs.NodeSetattrer = (*node)(nil)
	_ fs.NodeStatfser  = (*node)(nil)
	_ fs.NodeUnlinker  = (*node)(nil)
	_ fs.NodeWriter    = (*node)(nil)
)

func (n *node) ino() uint64 { return n.StableAttr().Ino }

// child makes a file or a folder with a name in this folder.
func (n *node) child(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	d := n.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	made := &node{disk: d, mode: mode & 0o7777, log: name == logName}
	d.last++
	if !made.log {
		if errno := d.add(action{what: linked, inode: d.last, folder: n.ino(), name: name}); errno != 0 {
			return nil, errno
		}
	}
	d.folders[d.last] = mode&syscall.S_IFMT == syscall.S_IFDIR
	out.Mode, out.Nlink = mode, 1
	return n.NewPersistentInode(ctx, made, fs.StableAttr{Mode: mode & syscall.S_IFMT, Ino: d.last}), 0
}

func (n *node) Create(ctx context.Context, name string, _, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	inode, errno := n.child(ctx, name, mode&0o7777|syscall.S_IFREG, out)
	return inode, nil, fuse.FOPEN_KEEP_CACHE, errno
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.child(ctx, name, mode&0o7777|syscall.S_IFDIR, out)
}

func (n *node) Link(_ context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	errno := n.disk.add(action{what: linked, inode: target.EmbeddedInode().StableAttr().Ino, folder: n.ino(), name: name})
	target.(*node).attributes(&out.Attr)
	return target.EmbeddedInode(), errno
}

func (n *node) Unlink(_ context.Context, name string) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	return n.disk.add(action{what: unlinked, folder: n.ino(), name: name})
}

func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno { return n.Unlink(ctx, name) }

func (n *node) Rename(_ context.Context, name string, into fs.InodeEmbedder, target string, _ uint32) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	return n.disk.add(action{what: renamed, folder: n.ino(), name: name, into: into.EmbeddedInode().StableAttr().Ino, target: target})
}

func (n *node) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_KEEP_CACHE, 0
}

func (n *node) Read(_ context.Context, _ fs.FileHandle, into []byte, at int64) (fuse.ReadResult, syscall.Errno) {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	if n.disk.fail != nil {
		if errno := n.disk.fail(n.disk.calls, read); errno != 0 {
			return nil, errno
		}
	}
	from := min(int(at), len(n.data))
	return fuse.ReadResultData(slices.Clone(n.data[from:min(from+len(into), len(n.data))])), 0
}

func (n *node) Write(_ context.Context, _ fs.FileHandle, data []byte, at int64) (uint32, syscall.Errno) {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	if n.log {
		n.disk.log(data)
		return uint32(len(data)), 0
	}
	a := action{what: wrote, inode: n.ino(), at: at, data: slices.Clone(data)}
	if errno := n.disk.add(a); errno != 0 {
		return 0, errno
	}
	n.data = a.apply(n.data)
	if n.disk.forgets && n.disk.calls%10 == 0 {
		// It waits for this write. A store keeps the first two pages in memory.
		n.disk.forgetting.Go(func() { n.NotifyContent(int64(2*os.Getpagesize()), 0) })
	}
	return uint32(len(data)), 0
}

func (n *node) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	return n.disk.add(action{what: synced, inode: n.ino()})
}

func (n *node) Setattr(_ context.Context, _ fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	if size, ok := in.GetSize(); ok && !n.log {
		a := action{what: truncated, inode: n.ino(), at: int64(size)}
		if errno := n.disk.add(a); errno != 0 {
			return errno
		}
		n.data = a.apply(n.data)
	}
	if mode, ok := in.GetMode(); ok {
		n.mode = mode & 0o7777
	}
	n.attributes(&out.Attr)
	return 0
}

func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	n.attributes(&out.Attr)
	return 0
}

func (n *node) attributes(out *fuse.Attr) {
	out.Mode, out.Size, out.Nlink = n.mode, uint64(len(n.data)), 1
	if n.disk.folders[n.ino()] {
		out.Mode = max(out.Mode, 0o700)
	}
}

func (n *node) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	out.Bsize, out.Blocks, out.Bfree, out.Bavail = 4096, 1<<22, 1<<22, 1<<22
	return 0
}

// apply applies a write or a truncation to the content of a file.
func (a *action) apply(data []byte) []byte {
	size := a.at
	if a.what == wrote {
		size = max(int64(len(data)), a.at+int64(len(a.data)))
	}
	if grow := int(size) - len(data); grow > 0 {
		data = append(data, make([]byte, grow)...)
	}
	copy(data[min(a.at, size):size], a.data)
	return data[:size]
}

// copyOut writes files below a folder, which is made.
func copyOut(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for name, data := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil && data != nil {
			err = os.WriteFile(path, data, 0o600)
		} else if err == nil {
			err = os.MkdirAll(path, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
