package workload

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/internal/durable"
	"example.org/slipway/workload/trace/ingest"
	"example.org/slipway/workload/trace/logs"
	"example.org/slipway/workload/trace/store"
)

// anonymiseFlags are the flags of slipway trace anonymise.
type anonymiseFlags struct {
	input               traceInputFlags
	out, keepKey, shift string
	o                   ingest.AnonymiserOptions
}

func traceAnonymiseCommand() *cobra.Command {
	var f anonymiseFlags
	cmd := &cobra.Command{
		Use:   "anonymise {STORE | {FILE | DIR}...} -o STORE",
		Short: "Replace names in traces by pseudonyms that cannot be reversed",
		Long: `Read a store or logs and write a store in which hosts, clients, ids, digests and all segments
of paths are pseudonyms: codes of the names under a random key that is thrown away. A name has
the same pseudonym wherever it occurs, so an analysis finds the same. Without the key nobody
can find a name by trying names. Users, referers and queries are left out.

User agents stay unless --agents is given. Sizes and times can reveal much about content and
people, too: --round-sizes and --shift change them.`,
		Example: `  slipway trace anonymise traces -o public --round-sizes 4096 --shift random
  slipway trace anonymise access.log -o public --keep-key key.txt`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.input.add(cmd)
	fl := cmd.Flags()
	command.AddPath(fl, &f.out, "store", "directory of the new store")
	fl.StringVar(&f.keepKey, "keep-key", "", "file with the key, made if it is missing: the same names get the same pseudonyms again")
	fl.Int64Var(&f.o.RoundSizes, "round-sizes", 0, "round sizes up to multiples of this many bytes")
	fl.StringVar(&f.shift, "shift", "", "add this to all times, such as -168h; \"random\" subtracts a random number of weeks")
	fl.BoolVar(&f.o.Agents, "agents", false, "replace user agents by pseudonyms, too")
	return cmd
}

func (f *anonymiseFlags) run(cmd *cobra.Command, args []string) error {
	if err := checkStore(f.out); err != nil {
		return err
	}
	if err := f.checkMixed(); err != nil {
		return err
	}
	var err error
	if f.o.Shift, err = parseShift(f.shift); err != nil {
		return command.Usagef("--shift: %w", err)
	}
	key, err := anonymiseKey(f.keepKey)
	if err != nil {
		return err
	}
	a, err := ingest.NewAnonymiser(key, &f.o)
	if err != nil {
		return err
	}
	if len(args) == 1 {
		s, err := store.Open(args[0])
		if err == nil {
			defer s.Close()
			for _, flag := range []string{"format", "zone", "start", "rate"} {
				if cmd.Flags().Changed(flag) {
					return command.Usagef("--%s is for logs, and %s is a store", flag, args[0])
				}
			}
			return copyStore(cmd, s, f.out, "anonymise", &store.CopyOptions{Change: a.Anonymise})
		}
		if info, serr := os.Stat(args[0]); !errors.Is(err, store.ErrNotStore) && (serr != nil || info.IsDir()) {
			return err
		}
	}
	return f.logs(cmd, args, a)
}

// checkMixed returns an error if a store would contain pseudonyms of two keys, of which
// one is lost.
func (f *anonymiseFlags) checkMixed() error {
	if f.keepKey != "" {
		return nil
	}
	s, err := store.Open(f.out)
	if err != nil { // no store, or an error that the writer will report
		return nil
	}
	defer s.Close()
	return fmt.Errorf("%s has traces already: the same names would have other pseudonyms in them; take another directory, or --keep-key for all", f.out)
}

// logs anonymises logs.
func (f *anonymiseFlags) logs(cmd *cobra.Command, args []string, a *ingest.Anonymiser) error {
	in, err := f.input.input(false)
	if err != nil {
		return err
	}
	files, total, err := logs.Files(args)
	if err != nil {
		return err
	}
	w, err := store.NewWriter(f.out, nil)
	if err != nil {
		return err
	}
	p := command.NewProgress("anonymise")
	began := time.Now()
	done, err := ingest.Import(cmd.Context(), in, files, w, &ingest.ImportOptions{Zone: f.input.zone, ForceZone: f.input.zone != "",
		Change:   a.Anonymise,
		Progress: func(records int64) { p.Share(in.Read(), total, "%d records", records) }})
	p.End()
	printImported(cmd.OutOrStdout(), done, len(files), time.Since(began))
	return err
}

// parseShift parses the duration by which times are moved.
func parseShift(s string) (time.Duration, error) {
	const week, mostWeeks = 7 * 24 * time.Hour, 200
	switch s {
	case "":
		return 0, nil
	case "random": // whole weeks keep the hour and the day of the week
		return -time.Duration(1+mathrand.N(mostWeeks)) * week, nil
	}
	return time.ParseDuration(s)
}

// keySize is the number of bytes of a new key.
const keySize = 32

// anonymiseKey returns a key. It creates the key, or reads it from a file. If file is
// named but does not exist, it keeps the new key there.
func anonymiseKey(file string) ([]byte, error) {
	if file != "" {
		text, err := os.ReadFile(file)
		if err == nil {
			key, err := hex.DecodeString(strings.TrimSpace(string(text)))
			if err != nil || len(key) < ingest.MinKey {
				return nil, fmt.Errorf("%s has no key: at least %d bytes in hexadecimal are needed", file, ingest.MinKey)
			}
			return key, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the key: %w", err)
		}
	}
	key := make([]byte, keySize)
	rand.Read(key) // never fails
	if file != "" {
		if err := durable.WriteFile(file, []byte(hex.EncodeToString(key)+"\n")); err != nil {
			return nil, fmt.Errorf("keep the key: %w", err)
		}
	}
	return key, nil
}
