package tasks

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// retryEvery is how long a probe waits after a failure. It is short compared with the
// time that any service takes to start, and long enough to leave the CPU to the service.
const retryEvery = 3 * time.Millisecond

// until connects and calls ask until ask succeeds or the context ends.
func until(ctx context.Context, dial Dialer, address string, ask func(net.Conn) (string, error)) (string, error) {
	for {
		answer, err := once(ctx, dial, address, ask)
		if err == nil {
			return answer, nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%s gave no right answer: %w", address, err)
		case <-time.After(retryEvery):
		}
	}
}

func once(ctx context.Context, dial Dialer, address string, ask func(net.Conn) (string, error)) (string, error) {
	conn, err := dial(ctx, address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if end, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(end); err != nil {
			return "", err
		}
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	return ask(conn)
}

// Line returns a probe that sends a request and returns the line that comes back.
func Line(address, request string) func(context.Context, Dialer) (string, error) {
	return func(ctx context.Context, dial Dialer) (string, error) {
		return until(ctx, dial, address, func(conn net.Conn) (string, error) {
			if _, err := io.WriteString(conn, request); err != nil {
				return "", err
			}
			return bufio.NewReader(io.LimitReader(conn, 1<<16)).ReadString('\n')
		})
	}
}

// get returns a probe that requests a page over HTTP/1.1 and returns the status and the body. Only
// status 200 counts as an answer.
func get(address, path string) func(context.Context, Dialer) (string, error) {
	return func(ctx context.Context, dial Dialer) (string, error) {
		return until(ctx, dial, address, func(conn net.Conn) (string, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
			if err != nil {
				return "", err
			}
			req.Close = true
			if err := req.Write(conn); err != nil {
				return "", err
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), req)
			if err != nil {
				return "", err
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
			if err != nil {
				return "", err
			}
			if resp.StatusCode != http.StatusOK {
				return "", fmt.Errorf("status %s", resp.Status)
			}
			return resp.Status + "\n" + string(body), nil
		})
	}
}

// redis returns a probe that sets, reads and deletes a key.
func redis(address string) func(context.Context, Dialer) (string, error) {
	return func(ctx context.Context, dial Dialer) (string, error) {
		return until(ctx, dial, address, func(conn net.Conn) (string, error) {
			r := bufio.NewReader(conn)
			var out strings.Builder
			for _, command := range []string{"PING", "SET a 1", "GET a", "DEL a", "GET a"} {
				if _, err := fmt.Fprintf(conn, "%s\r\n", command); err != nil {
					return "", err
				}
				line, err := r.ReadString('\n')
				if err != nil {
					return "", err
				}
				if line[0] == '-' { // still loading
					return "", fmt.Errorf("%s: %s", command, line)
				}
				if line[0] == '$' && line[1] != '-' {
					value, err := r.ReadString('\n')
					if err != nil {
						return "", err
					}
					line += value
				}
				out.WriteString(strings.ReplaceAll(line, "\r", ""))
			}
			return out.String(), nil
		})
	}
}

// pgStatements are the statements of a postgres task. The last statement returns the
// number and the sum of the remaining rows, which are 10 to 1001.
const pgStatements = `create table t(a int);
insert into t select generate_series(1,1000);
update t set a=a+1;
delete from t where a<10;
select count(*), sum(a) from t`

// postgres returns a probe that runs statements, separated by semicolons, as one simple query over
// protocol 3.0. It returns the rows, one on each line.
func postgres(address, statements string) func(context.Context, Dialer) (string, error) {
	return func(ctx context.Context, dial Dialer) (string, error) {
		return until(ctx, dial, address, func(conn net.Conn) (string, error) {
			params := "user\x00postgres\x00database\x00postgres\x00\x00"
			start := binary.BigEndian.AppendUint32(nil, uint32(8+len(params)))
			start = binary.BigEndian.AppendUint32(start, 3<<16)
			if _, err := conn.Write(append(start, params...)); err != nil {
				return "", err
			}
			r := bufio.NewReader(conn)
			if _, err := pgUntilReady(r); err != nil {
				return "", err
			}
			query := binary.BigEndian.AppendUint32([]byte{'Q'}, uint32(4+len(statements)+1))
			if _, err := conn.Write(append(append(query, statements...), 0)); err != nil {
				return "", err
			}
			return pgUntilReady(r)
		})
	}
}

// pgUntilReady reads messages up to ReadyForQuery and returns the rows.
func pgUntilReady(r *bufio.Reader) (string, error) {
	var rows strings.Builder
	var head [5]byte
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return "", err
		}
		size := binary.BigEndian.Uint32(head[1:])
		if size < 4 || size > 1<<20 {
			return "", fmt.Errorf("a message of %d bytes", size)
		}
		body := make([]byte, size-4)
		if _, err := io.ReadFull(r, body); err != nil {
			return "", err
		}
		switch head[0] {
		case 'E':
			return "", fmt.Errorf("postgres: %q", body)
		case 'D':
			row, err := pgRow(body)
			if err != nil {
				return "", err
			}
			rows.WriteString(row + "\n")
		case 'Z':
			return rows.String(), nil
		}
	}
}

// pgRow returns the fields of a DataRow, separated by spaces.
func pgRow(b []byte) (string, error) {
	short := errors.New("a row ends early")
	if len(b) < 2 {
		return "", short
	}
	n := int(binary.BigEndian.Uint16(b))
	b = b[2:]
	var fields []string
	for range n {
		if len(b) < 4 {
			return "", short
		}
		size := int(int32(binary.BigEndian.Uint32(b)))
		b = b[4:]
		if size < 0 {
			fields = append(fields, "null")
			continue
		}
		if len(b) < size {
			return "", short
		}
		fields = append(fields, string(b[:size]))
		b = b[size:]
	}
	return strings.Join(fields, " "), nil
}
