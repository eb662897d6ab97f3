//go:build unix

package realtest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// RedisOptions may be nil.
type RedisOptions struct {
	// Settings are as in redis.conf. By default a server writes nothing to disk.
	Settings map[string]string
}

// Redis starts a server of Redis, or of Valkey, which ends with the test.
func Redis(t testing.TB, o *RedisOptions) *Server {
	t.Helper()
	var program, bin string
	var err error
	for _, program = range []string{"valkey-server", "redis-server"} {
		if bin, err = folder(nil, program); err == nil {
			break
		}
	}
	need(t, err)
	s := &Server{path: filepath.Join(bin, program), url: "redis://%s/%s", serves: servesRedis, quits: syscall.SIGKILL}

	s.args = func(port int) ([]string, error) {
		settings := map[string]string{
			"bind": "127.0.0.1", "port": strconv.Itoa(port), "dir": s.dir, "save": `""`, "appendonly": "no",
		}
		if o != nil {
			maps.Copy(settings, o.Settings)
		}
		config := filepath.Join(s.dir, "redis.conf")
		return []string{config}, writeSettings(config, settings, "", "%s %s\n")
	}

	need(t, s.open(func() error { return nil }))
	closes(t, s.close)
	return s
}

// servesRedis sends a PING. A server that first wants a password answers too.
func servesRedis(conn net.Conn) error {
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(answer, "+PONG") && !strings.HasPrefix(answer, "-NOAUTH") {
		return errors.New("it answers no PING") // such as while it is loading
	}
	return nil
}

// writeSettings writes a file of settings that a server reads.
func writeSettings(path string, settings map[string]string, head, line string) error {
	text := []byte(head)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		text = fmt.Appendf(text, line, name, settings[name])
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return err
	}
	return own(path)
}
