package logs

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/formats"
	"example.org/slipway/workload/trace/logs/internal/tenfield"
)

// Choose returns the files of a list that are to be read. It skips the others as
// [trace.BadRepeated]: files that are the same file by another name, such as a link, and,
// unless the options have a format, logs of Harbor that repeat the requests of another
// log. If the log of Harbor's proxy is in the same directory, Choose leaves out the logs
// of the parts behind the proxy, because the proxy sees all clients and errors.
func (in *Input) Choose(ctx context.Context, files []string) []string {
	files = in.distinct(files)
	if in.o.Format != "" || len(files) < 2 {
		return files
	}
	formats := make([]trace.Format, len(files))
	front := map[string]int{} // for each directory, the file nearest to the clients
	for i, file := range files {
		formats[i] = in.formatOf(ctx, file)
		dir := filepath.Dir(file)
		if r := frontRank(formats[i]); r > 0 {
			if best, ok := front[dir]; !ok || r < frontRank(formats[best]) {
				front[dir] = i
			}
		}
	}
	var out []string
	for i, file := range files {
		best, ok := front[filepath.Dir(file)]
		if !ok || !repeats(formats[best], formats[i]) {
			out = append(out, file)
			continue
		}
		in.Skip(trace.BadRepeated, file, 0, fmt.Sprintf("it repeats the requests of %q; --format %s reads only logs like it",
			files[best], formats[i]))
	}
	return out
}

// distinct leaves out regular files that are in the list by another name already: Kubernetes has the
// logs of containers in /var/log/pods, and links to them in /var/log/containers.
func (in *Input) distinct(files []string) []string {
	type id struct{ device, inode uint64 }
	seen := map[id]string{}
	var out []string
	for _, file := range files {
		info, err := os.Stat(file)
		if err == nil && info.Mode().IsRegular() {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				key := id{st.Dev, st.Ino}
				if first, again := seen[key]; again {
					in.Skip(trace.BadRepeated, file, 0, fmt.Sprintf("it is %q by another name", first))
					continue
				}
				seen[key] = file
			}
		}
		out = append(out, file) // reading it will say what is wrong with it
	}
	return out
}

// frontRank orders the logs of Harbor's parts. 1 is nearest to the clients; 0 belongs to no part.
func frontRank(f trace.Format) int {
	switch f {
	case formats.Harbor:
		return 1
	case formats.HarborCore:
		return 2
	}
	return 0
}

// repeats reports whether a log, or another file that Harbor writes into its directory, repeats the
// requests of the part that is nearest to the clients.
func repeats(front, f trace.Format) bool {
	switch f {
	case formats.Distribution, formats.HarborCore, formats.Nginx, trace.FormatCLF:
		return f != front
	}
	return false
}

// formatOf returns the format of a regular file by its first lines, or "" if it is not
// known. It reads as many lines as an import reads before it gives up. It must know what
// an import will read, or the same requests would count twice.
func (in *Input) formatOf(ctx context.Context, path string) trace.Format {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	f, err := os.Open(path)
	if err != nil {
		return "" // reading it will say so
	}
	defer f.Close()
	return in.formatIn(&rawReader{r: f, n: new(atomic.Int64), ended: ctx.Err}, 0)
}

// formatIn returns the format of data that may be compressed. An archive has none.
func (in *Input) formatIn(r io.Reader, depth int) trace.Format {
	br := bufio.NewReaderSize(&stickyReader{r: r}, sniffSize)
	head, _ := br.Peek(sniffSize)
	z, closed, err := decompressor(br, head)
	if err != nil {
		return ""
	}
	if z != nil {
		defer closed()
		if depth >= maxNesting {
			return ""
		}
		return in.formatIn(z, depth+1)
	}
	text := newText(newTextReader(br, head))
	if skipBlank(text.Reader) != nil {
		return ""
	}
	if head, _ = text.Peek(sniffSize); tenfield.Begins(head) {
		return trace.FormatTrace
	}
	return newLineDecoder(text, "", in.o.Now).detect()
}
