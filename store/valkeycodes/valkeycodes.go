// Package valkeycodes is a [store.CodeCache] on Valkey or Redis, for vaults that
// share security codes: replicas on one store.
//
//	options, err := valkey.ParseURL("rediss://…")
//	codes, err := valkeycodes.Open(ctx, options, nil)
//	vault, err := cardvault.New(ctx, store, keys, &cardvault.Options{Codes: codes})
//
// The vault seals a code before it gives it away, under a key that ends with the
// cached value: the server, and whoever listens, sees ids of tokens and how long codes
// are kept.
//
// # The server
//
// A code that is written to a disk is stored, which PCI DSS forbids after the
// authorization. So a server with save points or an append-only file is refused; so is
// one that does not tell (CONFIG GET needs +config|get). Each connection is looked at,
// and there is a new one every minute. What does not show there is up to whoever runs
// the server: no swap, no BGSAVE, no dumps of memory, no replicas, which may persist for
// themselves. A fail-over to a replica may also bring back a code that was
// erased a moment before; a server that starts again, empty, does not. Any
// maxmemory-policy is safe: volatile-ttl lets the code with the least time left go,
// noeviction keeps no new one.
//
// It needs Redis 6.2 or any Valkey, and of their commands GET, SET, GETDEL, DEL, PING,
// CONFIG GET, HELLO and AUTH. One server is enough, and all vaults on a store need the
// same: Sentinel and clusters are not supported.
//
// # Failures
//
// A server that is killed, flushed or hangs has no codes; nothing else fails. Calls that
// wait in vain are the last to wait: the following fail at once, until the server has
// answered a PING that is sent in the background, every two seconds at least. It must
// answer that within 50 milliseconds, which is as long as a vault waits for most. Then the
// cache first erases what it could not erase or replace meanwhile: up to 65,536 values,
// until it is closed. Others go with their time.
package valkeycodes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/valkey-io/valkey-go"

	"github.com/cardvault/cardvault/store"
)

const (
	limit    = time.Second           // for a call, and for a connection
	patience = 50 * time.Millisecond // for a server that is up
	slow     = patience / 2          // whoever has waited longer in vain tells of the server

	lifetime = time.Minute // of a connection, and so until a server is looked at again

	firstPause = 100 * time.Millisecond // between two PINGs
	lastPause  = 2 * time.Second
	calm       = time.Minute // after which a failure is the first again

	// maxCalls at a time fit in the queue of a connection, of 1,024 commands, even if
	// none is answered. A full one would not honour a context.
	maxCalls = 256

	maxErase   = 1 << 16 // keys
	eraseBatch = 512
)

var errDown = errors.New("valkeycodes: the server does not answer")

// Options of a [Cache] may be nil.
type Options struct {
	// Prefix begins each key. Defaults to "cardvault:code:".
	Prefix string

	// AllowPersistence takes a server that writes to disk, or may.
	AllowPersistence bool

	// AllowUnchecked takes a server that refuses CONFIG GET, as some that are rented
	// do: look into what they do instead.
	AllowUnchecked bool

	// AllowPlaintext takes a connection without TLS that leaves the host. Without it
	// only loopback and Unix sockets need none.
	AllowPlaintext bool
}

var _ store.CodeCache = (*Cache)(nil)

// A Cache is a [store.CodeCache] that vaults may share.
type Cache struct {
	client valkey.Client
	check  checker
	prefix string
	slots  chan struct{}
	ctx    context.Context // ends with the cache
	cancel context.CancelFunc

	mu        sync.Mutex
	closed    bool
	down      error           // if set, calls fail at once, and with it
	erase     map[string]bool // keys to erase as soon as the server answers
	mending   bool            // while down, or with keys to erase
	pause     time.Duration   // before the next PING, while down
	recovered time.Time
	work      sync.WaitGroup // grows unless closed
}

// Open returns a cache on the server of o, of which it uses InitAddress, TLSConfig,
// Username, Password, AuthCredentialsFn, ClientName, SelectDB, Dialer and DialCtxFn.
// The cache must be closed.
//
// The error is about options or a server that does not fit. A server that
// does not answer is none: a vault starts without it, and uses it from when it does.
// [Cache.Ping] tells.
func Open(ctx context.Context, o valkey.ClientOption, opts *Options) (*Cache, error) {
	if opts == nil {
		opts = &Options{}
	}
	if len(o.InitAddress) != 1 || o.Sentinel.MasterSet != "" {
		return nil, errors.New("valkeycodes: want the address of one server")
	}
	c := &Cache{prefix: opts.Prefix, slots: make(chan struct{}, maxCalls), erase: make(map[string]bool), check: checker{client: o, opts: *opts}}
	if c.prefix == "" {
		c.prefix = "cardvault:code:"
	}
	dialer := o.Dialer
	if dialer.Timeout == 0 {
		dialer.Timeout = limit
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

		DisableCache:      true, // no code is kept here
		DisableRetry:      true, // a caller that has 50 milliseconds has no second try
		ForceSingleClient: true,
		// One connection keeps the order of commands, and one that always queues them
		// outlives a call that gives up.
		PipelineMultiplex:   -1,
		AlwaysPipelining:    true,
		ConnLifetime:        lifetime,
		ConnWriteTimeout:    limit,
		ReadBufferEachConn:  32 << 10,
		WriteBufferEachConn: 32 << 10,
	})
	if client == nil {
		return nil, fmt.Errorf("valkeycodes: %w", err)
	}
	c.client = client // which has not connected yet: see dial
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if err := c.Ping(ctx); err != nil {
		if _, unfit := errors.AsType[unfit](err); unfit || ctx.Err() != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// Ping returns nil if the server answers and fits, also if calls do not wait for it at
// the time.
func (c *Cache) Ping(ctx context.Context) error {
	if err := c.begin(ctx, true); err != nil {
		return err
	}
	_, err := c.send(ctx, c.client.B().Ping().Build(), "")
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
	_, err := c.do(ctx, c.client.B().Set().Key(key).Value(string(value)).PxMilliseconds(ms).Build(), key)
	return err
}

// Get implements [store.CodeCache].
func (c *Cache) Get(ctx context.Context, id uuid.UUID) ([]byte, error) {
	return c.do(ctx, c.client.B().Get().Key(c.key(id)).Build(), "")
}

// Take implements [store.CodeCache].
func (c *Cache) Take(ctx context.Context, id uuid.UUID) ([]byte, error) {
	return c.do(ctx, c.client.B().Getdel().Key(c.key(id)).Build(), "")
}

// Delete implements [store.CodeCache].
func (c *Cache) Delete(ctx context.Context, id uuid.UUID) error {
	key := c.key(id)
	_, err := c.do(ctx, c.client.B().Del().Key(key).Build(), key)
	return err
}

// Close implements [store.CodeCache]. It leaves the values, which other vaults
// may need, and takes two seconds at most.
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

// do sends a command, unless the server is down. If that does not succeed, erase is a
// key that is erased as soon as it can be, or "".
func (c *Cache) do(ctx context.Context, cmd valkey.Completed, erase string) ([]byte, error) {
	if err := c.begin(ctx, false); err != nil {
		if errors.Is(err, errDown) {
			c.eraseLater(erase)
		}
		return nil, err
	}
	return c.send(ctx, cmd, erase)
}

// begin takes a slot for a call, which send frees: also while the server is down, if
// anyway is set.
func (c *Cache) begin(ctx context.Context, anyway bool) error {
	may := func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case c.closed:
			return store.ErrClosed
		case ctx.Err() != nil:
			return ctx.Err()
		case c.down != nil && !anyway:
			return c.down
		}
		c.work.Add(1)
		return nil
	}
	if err := may(); err != nil {
		return err
	}
	defer c.work.Done()
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	// The calls before may have found out meanwhile.
	if err := may(); err != nil {
		<-c.slots
		return err
	}
	return nil
}

// send sends a command and waits for its answer.
func (c *Cache) send(ctx context.Context, cmd valkey.Completed, erase string) ([]byte, error) {
	begin := time.Now()
	answer := make(chan valkey.ValkeyResult)
	// Whoever finds another call connecting waits for that, whatever its own context
	// says. So it does not wait here.
	go func() {
		defer c.work.Done()
		defer func() { <-c.slots }()
		result := c.within(ctx, limit, cmd)
		done := false
		select {
		case answer <- result:
			done = result.Error() == nil
		case <-ctx.Done():
		}
		if !done {
			c.eraseLater(erase)
		}
	}()
	var err error
	select {
	case result := <-answer:
		var value []byte
		if value, err = bytesOf(result); err == nil {
			return value, nil
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	var reply *valkey.ValkeyError
	switch {
	case valkey.IsValkeyNil(err):
		return nil, store.ErrNotFound
	case errors.As(err, &reply):
		return nil, errors.New("valkeycodes: the server refuses: " + word(reply.Error()))
	case ctx.Err() != nil:
		waited := time.Since(begin)
		err = fmt.Errorf("no answer in %v: %w", waited.Round(time.Millisecond), ctx.Err())
		if waited >= slow {
			c.failed(err)
		}
	default:
		c.failed(err)
	}
	return nil, fmt.Errorf("valkeycodes: %w", err)
}

func (c *Cache) within(ctx context.Context, d time.Duration, cmd valkey.Completed) valkey.ValkeyResult {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return c.client.Do(ctx, cmd)
}

// bytesOf returns a copy of what a server has answered with, nil if that is no value.
func bytesOf(result valkey.ValkeyResult) ([]byte, error) {
	message, err := result.ToMessage()
	if err != nil || !message.IsString() {
		return nil, err
	}
	text, err := message.ToString()
	return []byte(text), err
}

// failed makes calls fail at once until the server answers again.
func (c *Cache) failed(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = fmt.Errorf("%w: %v", errDown, cause) // not %w: it is not the context of a later call that ended
	c.mend()
}

// eraseLater erases a key in the background.
func (c *Cache) eraseLater(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if key == "" || len(c.erase) >= maxErase {
		return
	}
	c.erase[key] = true
	c.mend()
}

// mend starts what ends when the server answers and there is nothing to erase. The caller
// holds the lock.
func (c *Cache) mend() {
	if c.closed || c.mending {
		return
	}
	c.mending = true
	if time.Since(c.recovered) > calm {
		c.pause = 0
	}
	c.work.Go(func() {
		for c.wait() {
			err := c.mended()
			if err == nil {
				return
			}
			c.failed(err)
		}
	})
}

// wait waits until it is time for the next PING, longer each time, and returns false when
// the cache is closed.
func (c *Cache) wait() bool {
	c.mu.Lock()
	var pause time.Duration
	if c.down != nil {
		pause = c.pause
		c.pause = min(max(2*pause, firstPause), lastPause)
	}
	c.mu.Unlock()
	select {
	case <-time.After(pause):
		return true
	case <-c.ctx.Done():
		return false
	}
}

// mended returns nil if the server answers and has erased what it should.
func (c *Cache) mended() error {
	// The first PING may have to connect.
	for _, d := range []time.Duration{limit, patience} {
		if err := c.within(c.ctx, d, c.client.B().Ping().Build()).NonValkeyError(); err != nil {
			return err
		}
	}
	for {
		keys := c.toErase()
		if len(keys) == 0 {
			return nil
		}
		if err := c.within(c.ctx, limit, c.client.B().Del().Key(keys...).Build()).NonValkeyError(); err != nil {
			for _, key := range keys {
				c.eraseLater(key)
			}
			return err
		}
	}
}

// toErase takes some of the keys to erase. If there are none the server is up again.
func (c *Cache) toErase() (keys []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.erase {
		if len(keys) == eraseBatch {
			break
		}
		keys = append(keys, key)
		delete(c.erase, key)
	}
	if len(keys) > 0 {
		return keys
	}
	if c.down != nil {
		c.down, c.recovered = nil, time.Now()
	}
	c.mending = false
	return nil
}
