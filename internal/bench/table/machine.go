package table

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Machine describes where and when a table was measured.
type Machine struct {
	Date      string  `json:"date"`
	Go        string  `json:"go"`
	System    string  `json:"system"` // kernel and architecture
	Processor string  `json:"processor"`
	CPUs      int     `json:"cpus"`
	Memory    float64 `json:"memory_gib"`
	Syncs     float64 `json:"fsyncs"` // of a 4 KB page, a second, one after another
}

// ThisMachine describes this machine. It measures the rate of fsync on the disk below dir.
func ThisMachine(dir string) (Machine, error) {
	m := Machine{
		Date:      time.Now().UTC().Format(time.DateOnly),
		Go:        runtime.Version(),
		Processor: lineOf("/proc/cpuinfo", "model name"),
		CPUs:      runtime.NumCPU(),
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return m, err
	}
	m.System = fmt.Sprintf("%s %s %s", unix.ByteSliceToString(name.Sysname[:]), unix.ByteSliceToString(name.Release[:]), runtime.GOARCH)

	kib, _, _ := strings.Cut(lineOf("/proc/meminfo", "MemTotal"), " ")
	if n, err := strconv.ParseFloat(kib, 64); err == nil {
		m.Memory = n / (1 << 20)
	}

	var err error
	m.Syncs, err = syncs(dir)
	return m, err
}

// String returns the description as one sentence.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %d CPUs (%s), %.0f GiB of memory, %s, %s, a disk with %s fsyncs of 4 KB a second",
		m.Date, m.CPUs, m.Processor, m.Memory, m.System, m.Go, thousands(m.Syncs))
}

// lineOf returns the value of a name in a file of /proc, and "" elsewhere.
func lineOf(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// syncs returns how many pages of 4 KB can be written and synced a second, one after
// another, in a file that has its size.
func syncs(dir string) (rate float64, err error) {
	f, err := os.Create(filepath.Join(dir, "syncs"))
	if err != nil {
		return 0, err
	}
	defer func() {
		f.Close()
		os.Remove(f.Name())
	}()
	const pages = 256
	page := make([]byte, 4096)
	if _, err := f.Write(make([]byte, pages*len(page))); err != nil {
		return 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}

	start := time.Now()
	for i := range pages {
		page[0]++
		if _, err := f.WriteAt(page, int64(i*len(page))); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
	}
	return pages / time.Since(start).Seconds(), nil
}
