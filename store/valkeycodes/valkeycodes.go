// Package valkeycodes is a [store.CodeCache] on Valkey or Redis, for vaults that
// share security codes: replicas on one store.
//
//	options, err := valkey.ParseURL("rediss://…")
//	codes, err := valkeycodes.Open(ctx, options, nil)
//	vault, err := cardvault.New(ctx, store, keys, &cardvault.Options{Codes: codes})
//
// The vault seals a code before it hands it over, under a key that ends with the cached
// value. The server, and anybody who listens, sees only ids of tokens and how long codes
// are kept.
//
// # The server
//
// A code that is written to a disk is stored, which PCI DSS forbids after the
// authorization. So a server with save points or an append-only file is refused. A server
// that hides its settings (CONFIG GET needs +config|get), or a login that lacks a command,
// is refused too. A replica is treated as down.
//
// Each connection is checked, and there is a new one every minute, or when a server becomes
// a replica. The checks cannot see everything, so the operator must ensure: no swap, no
// BGSAVE, no dumps of memory, and no replicas, which may persist for themselves. A
// fail-over to a replica may also bring back a code that was erased a moment before; a
// server that restarts empty does not. Any maxmemory-policy is safe: volatile-ttl evicts
// the code with the least time left, noeviction keeps no new one.
//
// SLOWLOG keeps commands, and so sealed codes, until others come: set
// slowlog-log-slower-than to -1. A cache that finds it set otherwise logs a warning.
//
// It needs Redis 6.2 or any Valkey, and of their commands GET, SET, DEL, SCAN, PING,
// CONFIG GET, HELLO and AUTH, on keys that begin with [Options.Prefix]; for some
// options SELECT and CLIENT SETNAME. One server is enough, and all vaults on a store need
// the same: Sentinel and clusters are not supported, and a server of a cluster is refused.
//
// # Failures
//
// A server that is killed, flushed or hangs has no codes; nothing else fails. After a call
// that has waited in vain, the server must answer a PING within [Options.Patience]. The
// default is 50 milliseconds, as long as a vault waits for most calls. If it does not
// answer, calls fail at once until it does. It is pinged in the background, at least every
// three seconds, even if no server was there at the start, and whenever a connection ends.
// So no call has to discover that itself.
//
// The cache remembers values that could not be erased or replaced meanwhile. When the
// server is back it erases them before it is used, for at most 15 minutes and until the
// cache is closed. This may erase a value that another vault has put since: a lost code can
// be entered again. Above 65,536 values it no longer remembers which, and erases everything
// with its prefix.
//
// An abandoned connection is reset, so that a command which has not left this host never
// does. A command that has left it, and is held up by a proxy until another connection is
// in use, is still executed. A SET then keeps its code for its time, even if it was erased
// meanwhile. Nothing between vault and server should store and forward.
package valkeycodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/valkey-io/valkey-go"

	"github.com/cardvault/cardvault/store"
)

const (
	limit    = time.Second           // for a call, and for a connection; more if Options.Patience is
	patience = 50 * time.Millisecond // for a server that is up

	lifetime = time.Minute // of a connection, and so until a server is looked at again

	firstPause = 100 * time.Millisecond // between two PINGs
	lastPause  = 2 * time.Second

	// maxCalls at a time fit in the queue of a connection, of 1,024 commands, even if
	// none is answered. A full one would not honour a context.
	maxCalls = 256

	maxErase   = 1 << 16          // keys
	eraseBatch = 512              // of one command
	eraseFor   = 15 * time.Minute // as long as a vault keeps a code
)

var errDown = errors.New("valkeycodes: the server cannot be used")

// Options of a [Cache] may be nil.
type Options struct {
	// Prefix begins each key. Defaults to "cardvault:code:".
	Prefix string

	// AllowPersistence accepts a server that writes to disk, or may.
	AllowPersistence bool

	// AllowUnchecked accepts a server that refuses CONFIG GET, as some hosted ones do:
	// check how they persist data.
	AllowUnchecked bool

	// AllowPlaintext accepts a connection without TLS that leaves the host. By default only
	// loopback and Unix sockets need no TLS.
	AllowPlaintext bool

	// Patience limits how long a server that is up may take to answer a PING. Defaults to
	// 50 milliseconds, which is as long as a vault waits for a cache in most calls.
	Patience time.Duration

	// Logger receives a warning about an enabled SLOWLOG, and a notice when a lost server
	// is back. If nil, nothing is logged.
	Logger *slog.Logger
}

var _ store.CodeCache = (*Cache)(nil)

// A Cache is a [store.CodeCache] that vaults may share.
type Cache struct {
	client   valkey.Client
	limit    time.Duration
	patience time.Duration
	check    checker
	prefix   string
	log      *slog.Logger
	slots    chan struct{}
	ctx      context.Context // ends with the cache
	cancel   context.CancelFunc

	late chan struct{} // a call was, while mending

	mu      sync.Mutex
	closed  bool
	down    error                    // if set, calls fail at once, and with it
	busy    map[string]chan struct{} // keys that a call changes; closed when it does no more
	erase   map[string]time.Time     // keys to erase as soon as the server answers, and since when
	all     time.Time                // if set, they were too many: all with the prefix, and since when
	mending bool                     // while down, in doubt, or with keys to erase
	work    sync.WaitGroup           // grows unless closed
}

// Open returns a cache on the server of o. It uses InitAddress, TLSConfig, Username,
// Password, AuthCredentialsFn, ClientName, SelectDB, Dialer and DialCtxFn. The cache must
// be closed.
//
// The error is about options, about a server that answers and does not fit, or about the
// end of ctx. A server that does not answer is not an error: a vault starts without it, and
// uses it as soon as it answers. [Cache.Ping] reports whether it does.
func Open(ctx context.Context, o valkey.ClientOption, opts *Options) (*Cache, error) {
	var settings Options
	if opts != nil {
		settings = *opts
	}
	settings.Prefix = cmp.Or(settings.Prefix, "cardvault:code:")
	if settings.Patience <= 0 {
		settings.Patience = patience
	}
	settings.Logger = cmp.Or(settings.Logger, slog.New(slog.DiscardHandler))
	if len(o.InitAddress) != 1 || o.Sentinel.MasterSet != "" {
		return nil, errors.New("valkeycodes: exactly one server address is required")
	}

	c := &Cache{
		limit:    max(limit, settings.Patience),
		patience: settings.Patience,
		prefix:   settings.Prefix,
		log:      settings.Logger,
		slots:    make(chan struct{}, maxCalls),
		late:     make(chan struct{}, 1),
		busy:     make(map[string]chan struct{}),
		erase:    make(map[string]time.Time),
	}

	c.check = checker{client: o, opts: settings, lost: c.lost}
	dialer := o.Dialer
	if dialer.Timeout == 0 {
		dialer.Timeout = c.limit
	}
	client, err := valkey.NewClient(valkey.ClientOption{
		InitAddress:       o.InitAddress,
		TLSConfig:         o.TLSConfig,
		Username:          o.Username,
		Password:          o.Password,
		AuthCredentialsFn: o.AuthCredentialsFn,
		ClientName:        o.ClientName,
		SelectDB:          o.SelectDB,
		Dialer:            dialer,
		DialCtxFn:         c.check.dial,

		AlwaysRESP2:       true, // see guarded
		ClientSetInfo:     valkey.DisableClientSetInfo,
		DisableCache:      true, // no code is kept here
		DisableRetry:      true, // a caller that has 50 milliseconds has no second try
		ForceSingleClient: true,
		// One connection keeps the order of commands. With permanent queueing it outlives a
		// call that gives up.
		PipelineMultiplex:   -1,
		AlwaysPipelining:    true,
		ConnLifetime:        lifetime,
		ConnWriteTimeout:    c.limit,
		ReadBufferEachConn:  32 << 10,
		WriteBufferEachConn: 32 << 10,
	})
	if client == nil {
		return nil, fmt.Errorf("valkeycodes: %w", err)
	}
	c.client = client // which has not connected yet: see dial
	c.ctx, c.cancel = context.WithCancel(context.Background())

	if err := c.Ping(ctx); err != nil {
		if _, refused := errors.AsType[unfit](err); refused {
			return nil, errors.Join(err, c.Close())
		}
		if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
			<-ctx.Done() // the connection has the same deadline, and may notice it first
		}
		if ctx.Err() != nil { // whether or not Ping ended for it
			return nil, errors.Join(ctx.Err(), c.Close())
		}
	}
	return c, nil
}

// Ping returns nil if the server answers and fits, also if calls do not wait for it at
// the time.
func (c *Cache) Ping(ctx context.Context) error {
	if err := c.begin(ctx, "", true); err != nil {
		return err
	}
	_, err := c.send(ctx, c.client.B().Ping().Build(), "", pong)
	return err
}

// Put implements [store.CodeCache]. The time of a value begins when it arrives at
// the server.
func (c *Cache) Put(ctx context.Context, id uuid.UUID, value []byte, ttl time.Duration) error {
	if len(value) > store.MaxCode {
		return fmt.Errorf("%w: security code of more than %d bytes", store.ErrInvalid, store.MaxCode)
	}
	// The server counts a millisecond that has begun whole.
	ms := ttl.Milliseconds() - 1
	if ms < 1 {
		return c.Delete(ctx, id)
	}
	key := c.key(id)
	_, err := c.do(ctx, c.client.B().Set().Key(key).Value(string(value)).PxMilliseconds(ms).Build(), key, set)
	return err
}

// Get implements [store.CodeCache].
func (c *Cache) Get(ctx context.Context, id uuid.UUID) ([]byte, error) {
	key := c.key(id)
	return c.read(ctx, c.client.B().Get().Key(key).Build(), key)
}

// Delete implements [store.CodeCache].
func (c *Cache) Delete(ctx context.Context, id uuid.UUID) error {
	key := c.key(id)
	_, err := c.do(ctx, c.client.B().Del().Key(key).Build(), key, count)
	return err
}

// Close implements [store.CodeCache]. It leaves the values, which other vaults
// may need, and takes two seconds at most, or twice Options.Patience.
func (c *Cache) Close() error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	c.mu.Unlock()
	if first {
		c.cancel()
		c.work.Wait() // a connection that is made meanwhile would stay open
		c.client.Close()
	}
	return nil
}

func (c *Cache) key(id uuid.UUID) string { return c.prefix + id.String() }

// A reader returns the value of an answer, or an error if it is not one to the command.
type reader func(*valkey.ValkeyMessage) ([]byte, error)

func valueIn(m *valkey.ValkeyMessage) ([]byte, error) {
	switch {
	case m.IsNil():
		return nil, store.ErrNotFound
	case !m.IsString():
		return nil, errProtocol
	}
	text, err := m.ToString()
	return []byte(text), err
}

func set(m *valkey.ValkeyMessage) ([]byte, error)  { return nil, says(m, "OK") }
func pong(m *valkey.ValkeyMessage) ([]byte, error) { return nil, says(m, "PONG") }

func says(m *valkey.ValkeyMessage, want string) error {
	if text, _ := m.ToString(); text != want { // "" if the message is not a string
		return errProtocol
	}
	return nil
}

func count(m *valkey.ValkeyMessage) ([]byte, error) {
	if !m.IsInt64() {
		return nil, errProtocol
	}
	return nil, nil
}

// do sends a command, unless the server is down. If a command that changes a named key does
// not succeed, the key is erased as soon as possible.
func (c *Cache) do(ctx context.Context, cmd valkey.Completed, key string, read reader) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err // and nothing changes
	}
	if err := c.begin(ctx, key, false); err != nil {
		c.eraseLater(key)
		return nil, err
	}
	return c.send(ctx, cmd, key, read)
}

// read is do for a value. A value with a pending erasure is treated as absent.
func (c *Cache) read(ctx context.Context, cmd valkey.Completed, key string) ([]byte, error) {
	doomed := c.doomed(key)
	b, err := c.do(ctx, cmd, "", valueIn)
	if err == nil && (doomed || c.doomed(key)) {
		return nil, store.ErrNotFound
	}
	return b, err
}

func (c *Cache) doomed(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, doomed := c.erase[key]
	return doomed || !c.all.IsZero()
}

// begin waits until a call has a slot and, if it names a key, is the only one that changes
// that key: an abandoned SET must not follow the next one. If anyway is set it succeeds
// even while the server is down. send releases the slot and the key.
func (c *Cache) begin(ctx context.Context, key string, anyway bool) error {
	if err := c.enter(ctx, key, anyway); err != nil {
		return err
	}

	var err error
	select {
	case c.slots <- struct{}{}:
		// The calls before may have noticed meanwhile.
		c.mu.Lock()
		if err = c.refuses(anyway); err == nil {
			delete(c.erase, key)
		}
		c.mu.Unlock()
		if err == nil {
			return nil
		}
		<-c.slots
	case <-ctx.Done():
		err = ctx.Err()
	}

	c.leave(key)
	return err
}

// enter is the part of begin that needs no slot.
func (c *Cache) enter(ctx context.Context, key string, anyway bool) error {
	for {
		c.mu.Lock()
		other := c.busy[key]
		err := c.refuses(anyway)
		if err == nil && other == nil {
			c.work.Add(1)
			if key != "" {
				c.busy[key] = make(chan struct{})
			}
		}
		c.mu.Unlock()

		if err != nil || other == nil {
			return err
		}
		select {
		case <-other:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// refuses returns why a call fails at once, if it does. The caller holds the lock.
func (c *Cache) refuses(anyway bool) error {
	switch {
	case c.closed:
		return store.ErrClosed
	case anyway:
		return nil
	}
	return c.down
}

// leave ends enter.
func (c *Cache) leave(key string) {
	c.mu.Lock()
	c.release(key)
	c.mu.Unlock()
	c.work.Done()
}

// release lets others change a key. The caller holds the lock.
func (c *Cache) release(key string) {
	if key != "" {
		close(c.busy[key])
		delete(c.busy, key)
	}
}

// send sends a command and waits for its answer.
func (c *Cache) send(ctx context.Context, cmd valkey.Completed, key string, read reader) ([]byte, error) {
	type answer struct {
		value []byte
		err   error
	}
	begin := time.Now()
	answered, marked := make(chan answer), make(chan struct{})

	// A call that finds another call connecting waits for that one, whatever its own
	// context says. So it does not wait here.
	go func() {
		defer c.leave(key)
		defer func() { <-c.slots }()
		var a answer
		m, err := c.within(ctx, c.limit, cmd).ToMessage()
		if a.err = err; err == nil || valkey.IsValkeyNil(err) {
			a.value, a.err = read(&m)
		}
		select {
		case answered <- a:
		case <-ctx.Done():
			c.eraseLater(key) // again: eraseAll may have come before the command
		}
		<-marked // a later mark would erase what the next call puts
	}()

	var a answer
	select {
	case a = <-answered:
	case <-ctx.Done():
		a.err = ctx.Err()
	}
	if a.err != nil {
		c.eraseLater(key) // from now on it is none here, wherever the command is by now
	}
	close(marked)

	var reply *valkey.ValkeyError
	switch err := a.err; {
	case err == nil, errors.Is(err, store.ErrNotFound):
		return a.value, err
	case errors.As(err, &reply):
		return nil, errors.New("valkeycodes: the server refuses: " + word(reply.Error()))
	case ctx.Err() == nil:
		c.doubt()
		return nil, fmt.Errorf("valkeycodes: %w", err)
	}

	waited := time.Since(begin)
	err := fmt.Errorf("valkeycodes: no answer in %v: %w", waited.Round(time.Millisecond), ctx.Err())

	// A caller who gave up early says nothing about the server; a caller who has waited for
	// half of its patience does.
	if waited >= c.patience/2 && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		c.doubt()
	}
	return nil, err
}

func (c *Cache) within(ctx context.Context, d time.Duration, cmd valkey.Completed) valkey.ValkeyResult {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return c.client.Do(ctx, cmd)
}

// ping returns nil if the server answers within d, be it with an error.
func (c *Cache) ping(d time.Duration) error {
	m, err := c.within(c.ctx, d, c.client.B().Ping().Build()).ToMessage()
	if _, ok := errors.AsType[*valkey.ValkeyError](err); ok && !valkey.IsValkeyNil(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return says(&m, "PONG")
}

// doubt asks a server that is not known to be down whether it is there.
func (c *Cache) doubt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mending && c.down == nil {
		select {
		case c.late <- struct{}{}:
		default:
		}
	}
	c.mend()
}

// lost connects again in the background: a call that had to might wait too long.
func (c *Cache) lost() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.work.Go(func() {
		select {
		case <-time.After(firstPause): // the server may end each connection at once
		case <-c.ctx.Done():
			return
		}
		if c.ping(c.limit) != nil {
			c.doubt()
		}
	})
}

// fail makes calls fail at once.
func (c *Cache) fail(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = fmt.Errorf("%w: %v", errDown, cause) // not %w: it is not the context of a later call that ended
}

// eraseLater erases a key in the background.
func (c *Cache) eraseLater(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case key == "":
		return
	case !c.all.IsZero() || len(c.erase) >= maxErase:
		clear(c.erase)
		c.all = time.Now()
	default:
		c.erase[key] = time.Now()
	}
	c.mend()
}

// mend starts the goroutine that ends when the server answers and nothing is left to erase.
// The caller holds the lock.
func (c *Cache) mend() {
	if c.closed || c.mending {
		return
	}
	c.mending = true
	c.work.Go(func() {
		for pause := firstPause; !c.mended(); pause = min(2*pause, lastPause) {
			select {
			case <-time.After(pause):
			case <-c.late:
			case <-c.ctx.Done():
				return
			}
		}
	})
}

// mended reports whether the server answers and all pending erasures are done.
func (c *Cache) mended() bool {
	c.mu.Lock()
	maps.DeleteFunc(c.erase, func(_ string, since time.Time) bool { return time.Since(since) > eraseFor })
	down := c.down != nil
	c.mu.Unlock()

	if !down {
		if err := c.ping(c.patience); err != nil {
			c.fail(err)
			down = true
		}
	}

	if down {
		err := c.ping(c.limit) // which may have to connect
		if err == nil {
			err = c.ping(c.patience)
		}
		if err != nil {
			c.fail(err)
			return false
		}
	}

	if err := c.eraseDue(); err != nil {
		c.fail(err)
		return false
	}
	c.mu.Lock()
	back := c.down != nil
	c.down = nil
	c.mending = len(c.erase) > 0 || !c.all.IsZero()
	mended := !c.mending
	c.mu.Unlock()
	if back {
		c.log.Info("the cache of security codes is back")
	}
	return mended
}

// eraseDue erases the pending keys that no other call in this process is changing.
func (c *Cache) eraseDue() error {
	if err := c.eraseAll(); err != nil {
		return err
	}
	for due := c.toErase(); len(due) > 0; due = c.toErase() {
		err := c.del(due)
		c.erased(due, err == nil)
		if err != nil {
			return err
		}
	}
	return nil
}

// eraseAll erases all values of the cache, including those of other vaults, if that is
// pending.
func (c *Cache) eraseAll() error {
	c.mu.Lock()
	since := c.all
	c.all = time.Time{} // keys to erase from now on are named again
	c.mu.Unlock()
	ids := glob.Replace(c.prefix) + strings.Repeat("?", len(uuid.Nil.String()))

	for cursor := uint64(0); time.Since(since) <= eraseFor; {
		found, err := c.within(c.ctx, c.limit, c.client.B().Scan().Cursor(cursor).Match(ids).Count(eraseBatch).Build()).AsScanEntry()
		if err == nil && len(found.Elements) > 0 {
			err = c.del(found.Elements)
		}
		if err != nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.all.IsZero() {
				c.all = since
			}
			return err
		}
		if cursor = found.Cursor; cursor == 0 {
			break
		}
	}

	return nil
}

// glob makes text a pattern.
var glob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

func (c *Cache) del(keys []string) error {
	return c.within(c.ctx, c.limit, c.client.B().Del().Key(keys...).Build()).Error()
}

// toErase returns some of the keys to erase. Other calls in this process do not change them
// until erased is called.
func (c *Cache) toErase() (due []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.erase {
		if len(due) == eraseBatch {
			break
		}
		if c.busy[key] == nil {
			c.busy[key] = make(chan struct{})
			due = append(due, key)
		}
	}
	return due
}

func (c *Cache) erased(due []string, done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range due {
		if done {
			delete(c.erase, key)
		}
		c.release(key)
	}
}
