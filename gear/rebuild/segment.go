package rebuild

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"example.org/slipway/gear/rebuild/deflate"
)

// ahead is how many plain bytes behind its own end a segment sees. A search looks at up
// to 258 bytes from the next position on.
const ahead = 512

// leastHeader is the length in bytes of a gzip header without options (RFC 1952 section
// 2.3).
const leastHeader = 10

// These are the parts of a segment, in the order in which they are coded.
const (
	doBlock = iota
	doHeader
	doTrailer
	doEnd
)

// These are the corrections of a guess.
const (
	fixLiteral  = iota
	fixDistance // the length was right
	fixLength   // the distance was right
	fixBoth
)

// span has what both encoder and decoder know about a segment.
type span struct {
	model deflate.Model
	// buf has history, then the plain bytes of the segment from at to end, then up to
	// ahead of the bytes that follow, and then deflate.Slack zeros.
	buf     []byte
	at, end int
}

// models has the chances of everything that is coded in a segment.
type models struct {
	event            [4]symbols // indexed by the event before
	inMember         chance
	intoMember       *number
	horizons, apart  *number
	sameHeader       chance
	headerSize       *number
	padded, knownSum chance

	kind              [4]symbols // indexed by the kind before
	final             chance
	stored, tokens    *number
	chunks            *number
	style             symbols
	headerBits        *number
	miss              [2]chance // indexed by whether there was a miss before
	gap               *number
	fix               symbols
	length            [2]symbols
	rank              [4]*number
	lastEvent, lastBk int
}

func newModels() *models {
	m := &models{inMember: even, sameHeader: even, padded: even, knownSum: even, final: even, miss: [2]chance{even, even},
		intoMember: newNumber(), horizons: newNumber(), apart: newNumber(), headerSize: newNumber(), stored: newNumber(),
		tokens: newNumber(), chunks: newNumber(), style: newSymbols(2), headerBits: newNumber(), gap: newNumber(), fix: newSymbols(2)}
	for i := range m.event {
		m.event[i], m.kind[i], m.rank[i] = newSymbols(2), newSymbols(2), newNumber()
	}
	for i := range m.length {
		m.length[i] = newSymbols(8)
	}
	return m
}

// intoMember reduces the distance between the start of a segment and the start of its
// member to what matters. Below 1 GiB that is the whole distance. Above, it is the
// position within windows of 32 KiB.
func intoMember(n int64) int {
	const limit = 1 << 30
	if n >= limit {
		n = limit - 1<<15 + n&(1<<15-1)
	}
	return int(n)
}

// segmentEncoder makes the data of one segment.
type segmentEncoder struct {
	*work
	span
	enc     *encoder
	m       *models
	member  int // where a member began in this segment; -1: it began before
	header  []byte
	scratch deflate.Writer
	limit   int     // bytes
	record  *replay // set if the segment is to be verified
}

// encodeSegment codes the events, given the plain bytes. It stops and returns nil when
// the result has more than limit bytes. record, if not nil, gets what a verification needs.
func encodeSegment(w *work, s span, into int64, horizons []int, events []*deflate.Event, limit int, record *replay) []byte {
	e := &segmentEncoder{work: w, span: s, enc: newEncoder(), m: newModels(), member: -1, limit: limit, record: record}
	begin := deflate.Span{Buf: s.buf, At: s.at, Member: s.at, Horizons: horizons}
	inside := events[0].Kind != deflate.MemberHeader
	e.enc.flag(&e.m.inMember, inside)
	if inside {
		n := intoMember(into)
		e.m.intoMember.put(e.enc, uint32(n))
		begin.Member -= n
	}
	e.m.horizons.put(e.enc, uint32(len(horizons)))
	before := s.at - 1
	for _, h := range horizons {
		e.m.apart.put(e.enc, uint32(h-before))
		before = h
	}
	e.pred.Start(s.model, begin)
	if record != nil {
		record.model, record.begin = s.model, begin
	}
	for _, ev := range events {
		if e.event(ev); e.tooLong() {
			return nil
		}
	}
	e.m.event[e.m.lastEvent].put(e.enc, doEnd)
	return e.enc.finish()
}

func (e *segmentEncoder) tooLong() bool { return len(e.enc.out) > e.limit }

func (e *segmentEncoder) do(what int) {
	e.m.event[e.m.lastEvent].put(e.enc, what)
	e.m.lastEvent = what
}

func (e *segmentEncoder) event(ev *deflate.Event) {
	enc, m := e.enc, e.m
	switch ev.Kind {
	case deflate.MemberHeader:
		e.do(doHeader)
		same := bytes.Equal(ev.Raw, e.header)
		if enc.flag(&m.sameHeader, same); !same {
			m.headerSize.put(enc, uint32(len(ev.Raw)))
			enc.bytes(ev.Raw)
		}
		e.header, e.member = ev.Raw, e.pred.At()
		e.pred.Member()
	case deflate.MemberTrailer:
		e.do(doTrailer)
		if enc.flag(&m.padded, ev.Pad != 0); ev.Pad != 0 {
			enc.plain(uint32(ev.Pad), 7)
		}
		known := e.member >= 0 && ev.CRC == crc32.ChecksumIEEE(e.buf[e.member:e.pred.At()]) && ev.Size == uint32(e.pred.At()-e.member)
		if enc.flag(&m.knownSum, known); !known {
			enc.plain(ev.CRC, 32)
			enc.plain(ev.Size, 32)
		}
	case deflate.BlockData:
		e.do(doBlock)
		e.block(&ev.Block)
	}
}

func (e *segmentEncoder) block(b *deflate.Block) {
	enc, m := e.enc, e.m
	m.kind[m.lastBk].put(enc, int(b.Kind))
	m.lastBk = int(b.Kind)
	enc.flag(&m.final, b.Final)
	if b.Kind == deflate.Stored {
		m.stored.put(enc, uint32(b.Plain))
		if enc.flag(&m.padded, b.Pad != 0); b.Pad != 0 {
			enc.plain(uint32(b.Pad), 7)
		}
		e.pred.Skip(b.Plain)
		return
	}
	from := e.pred.At()
	first := e.chunk(1)
	if first == 0 || !e.chunks(from+b.Plain) {
		m.tokens.put(enc, uint32(len(b.Tokens)))
	}
	if e.tokens(b.Tokens); e.tooLong() {
		return
	}
	if b.Kind == deflate.Dynamic {
		e.codesOf(b, e.buf[from:from+b.Plain], first-from)
	}
}

// maxChunks is the maximum number of chunks in a block whose end is coded as a number of
// chunks.
const maxChunks = 256

// chunks codes how many chunks end with the block that begins at the encoder's position.
// It returns false if the last chunk does not end with the block.
func (e *segmentEncoder) chunks(end int) bool {
	k := 1
	for k < maxChunks && e.chunk(k) < end {
		k++
	}
	if e.chunk(k) != end {
		k = 0
	}
	e.m.chunks.put(e.enc, uint32(k))
	return k > 0
}

// chunk returns the end of the k-th chunk.
func (e *segmentEncoder) chunk(k int) int {
	end := e.pred.Chunk(k)
	if e.record != nil && end > 0 {
		e.record.chunks[chunkAt{e.pred.At(), k}] = end
	}
	return end
}

func (e *segmentEncoder) tokens(toks []deflate.Token) {
	before := 0
	if r := e.record; r != nil {
		before = len(r.toks)
		r.toks = append(r.toks, toks...)
	}
	last, missed := -1, 0
	for i := 0; ; i++ {
		n, guess := e.pred.Agree(toks[i:])
		if i += n; i == len(toks) {
			break
		}
		e.enc.bit(&e.m.miss[missed], 1)
		e.m.gap.put(e.enc, uint32(i-last-1))
		rank := e.fixToken(guess, toks[i])
		if r := e.record; r != nil {
			r.misses = append(r.misses, miss{before + i, guess, rank})
		}
		if last, missed = i, 1; e.tooLong() {
			return
		}
		e.pred.Took(toks[i])
	}
	e.enc.bit(&e.m.miss[missed], 0)
}

// fixToken codes a token that differs from the guess. It returns the rank of the token, or
// -1 if that was not coded.
func (e *segmentEncoder) fixToken(guess, t deflate.Token) (rank int) {
	fix, guessed := fixBoth, 0
	rank = -1
	if guess != 0 {
		guessed = 1
		switch {
		case t == 0:
			fix = fixLiteral
		case t.Len() == guess.Len():
			fix = fixDistance
		case t.Dist() == guess.Dist():
			fix = fixLength
		}
		e.m.fix.put(e.enc, fix)
	}
	if fix == fixLength || fix == fixBoth {
		e.m.length[guessed].put(e.enc, t.Len()-3)
	}
	if fix == fixDistance || fix == fixBoth {
		rank = e.pred.Rank(t)
		e.m.rank[fix].put(e.enc, uint32(rank+1))
		if rank < 0 {
			e.enc.plain(uint32(t.Dist()-1), 15)
		}
	}
	return rank
}

// kept is the coding of a header whose bits are in the recipe.
const kept = 2

// codesOf codes the header of a dynamic block. Its first chunk ends at first in plain.
func (e *segmentEncoder) codesOf(b *deflate.Block, plain []byte, first int) {
	for i, c := range e.model.Codings() {
		e.codes.Build(b.Tokens, coded(c, plain, first), c.Style)
		e.scratch.Reset(0)
		e.scratch.Header(&e.codes)
		if n := e.scratch.Bits(); int(n) == b.Header.N && bytes.Equal(e.scratch.Bytes(), b.Header.Bits) {
			e.m.style.put(e.enc, i)
			return
		}
	}
	e.m.style.put(e.enc, kept)
	e.m.headerBits.put(e.enc, uint32(b.Header.N))
	e.enc.bytes(b.Header.Bits)
}

// coded returns the plain bytes for which a code is made.
func coded(c deflate.Coding, plain []byte, first int) []byte {
	if c.First {
		return plain[:max(0, min(first, len(plain)))]
	}
	return plain
}

// work is the memory of one goroutine that encodes or decodes segments. It takes 3 MB
// and the memory for a segment.
type work struct {
	pred  *deflate.Predictor
	codes deflate.Codes
	w     deflate.Writer
	toks  []deflate.Token
	plain []byte
}

func newWork() *work { return &work{pred: deflate.NewPredictor()} }

// window returns a buffer for n plain bytes and the slack behind them.
func (w *work) window(n int) []byte {
	if cap(w.plain) < n+deflate.Slack {
		w.plain = make([]byte, n+deflate.Slack)
	}
	w.plain = w.plain[:n+deflate.Slack]
	clear(w.plain[n:])
	return w.plain
}

// segmentDecoder writes one segment.
type segmentDecoder struct {
	*work
	span
	pred   guesser
	dec    *decoder
	m      *models
	member int
	header []byte
	limit  int64 // bits of the result
}

// decodeSegment writes the bits of a segment from its plain bytes, with the guesses of pred.
// The result begins at the given bit of its first byte, and has endBit bits. It is valid
// until w is used again.
func decodeSegment(w *work, pred guesser, s span, data []byte, bit uint, endBit int64) ([]byte, error) {
	d := &segmentDecoder{work: w, pred: pred, span: s, dec: newDecoder(data), m: newModels(), member: -1, limit: endBit}
	w.w.Reset(bit)
	begin := deflate.Span{Buf: s.buf, At: s.at, Member: s.at}
	if d.dec.flag(&d.m.inMember) {
		begin.Member -= int(d.m.intoMember.get(d.dec))
	}
	n, before := d.m.horizons.get(d.dec), s.at-1
	for range n {
		apart := d.m.apart.get(d.dec)
		if d.dec.over > maxOver || apart == 0 || apart > uint32(len(s.buf)) {
			return nil, errDamaged
		}
		if before += int(apart); before > len(s.buf)-deflate.Slack {
			return nil, errDamaged
		}
		begin.Horizons = append(begin.Horizons, before)
	}
	d.pred.Start(s.model, begin)
	if err := d.run(); err != nil {
		return nil, err
	}
	if w.w.Bits() != endBit || d.pred.At() != s.end {
		return nil, errDamaged
	}
	return w.w.Bytes(), nil
}

func (d *segmentDecoder) run() error {
	for {
		what := d.m.event[d.m.lastEvent].get(d.dec)
		d.m.lastEvent = what
		var err error
		switch what {
		case doBlock:
			err = d.block()
		case doHeader:
			err = d.memberHeader()
		case doTrailer:
			d.trailer()
		case doEnd:
			return nil
		}
		if err != nil {
			return err
		}
		if d.dec.over > maxOver || d.w.Bits() > d.limit {
			return errDamaged
		}
	}
}

func (d *segmentDecoder) memberHeader() error {
	if !d.dec.flag(&d.m.sameHeader) {
		n := d.m.headerSize.get(d.dec)
		if int64(n)*8 > d.limit {
			return errDamaged
		}
		d.header = d.dec.bytes(int(n))
	}
	if len(d.header) < leastHeader {
		return errDamaged
	}
	d.w.Raw(d.header)
	d.member = d.pred.At()
	d.pred.Member()
	return nil
}

func (d *segmentDecoder) trailer() {
	var pad byte
	if d.dec.flag(&d.m.padded) {
		pad = byte(d.dec.plain(7))
	}
	d.w.Pad(pad)
	var t [8]byte
	if d.dec.flag(&d.m.knownSum) {
		plain := d.buf[max(0, d.member):d.pred.At()]
		binary.LittleEndian.PutUint32(t[:], crc32.ChecksumIEEE(plain))
		binary.LittleEndian.PutUint32(t[4:], uint32(len(plain)))
	} else {
		binary.LittleEndian.PutUint32(t[:], d.dec.plain(32))
		binary.LittleEndian.PutUint32(t[4:], d.dec.plain(32))
	}
	d.w.Raw(t[:])
}

func (d *segmentDecoder) block() error {
	m, from := d.m, d.pred.At()
	kind := deflate.Kind(m.kind[m.lastBk].get(d.dec))
	if kind > deflate.Dynamic {
		return errDamaged
	}
	m.lastBk = int(kind)
	d.w.Begin(kind, d.dec.flag(&m.final))
	if kind == deflate.Stored {
		n := m.stored.get(d.dec)
		if n > 65535 || int(n) > d.end-from {
			return errDamaged
		}
		var pad byte
		if d.dec.flag(&m.padded) {
			pad = byte(d.dec.plain(7))
		}
		d.w.Stored(d.buf[from:from+int(n)], pad)
		d.pred.Skip(int(n))
		return nil
	}
	first := d.pred.Chunk(1)
	if err := d.tokens(first > 0); err != nil {
		return err
	}
	plain := d.buf[from:d.pred.At()]
	if kind == deflate.Fixed {
		d.w.Tokens(d.toks, plain, nil, nil)
		return nil
	}
	return d.dynamic(plain, first-from)
}

// dynamic writes the header and the tokens of a dynamic block.
func (d *segmentDecoder) dynamic(plain []byte, first int) error {
	style := d.m.style.get(d.dec)
	if codings := d.model.Codings(); style < len(codings) {
		d.codes.Build(d.toks, coded(codings[style], plain, first), codings[style].Style)
		d.w.Header(&d.codes)
		d.w.Tokens(d.toks, plain, &d.codes.Lit, &d.codes.Dist)
		return nil
	}
	n := int(d.m.headerBits.get(d.dec))
	if n > 8<<10 { // three times the length of the longest header
		return errDamaged
	}
	kept := d.dec.bytes((n + 7) / 8)
	h, err := deflate.ParseHeader(kept, n)
	if err != nil {
		return errDamaged
	}
	d.w.Kept(kept, n)
	d.w.Tokens(d.toks, plain, &h.Lit, &h.Dist)
	return nil
}

// extent reads where a block ends: at a plain byte, or after a number of tokens. tokens
// is -1 if the number is not limited.
func (d *segmentDecoder) extent(chunked bool) (end, tokens int, err error) {
	if chunked {
		k := d.m.chunks.get(d.dec)
		if k > maxChunks {
			return 0, 0, errDamaged
		}
		if k > 0 {
			if end = d.pred.Chunk(int(k)); end > d.end {
				return 0, 0, errDamaged
			}
			return end, -1, nil
		}
	}
	n := d.m.tokens.get(d.dec)
	if int64(n) > int64(min(d.end-d.pred.At(), deflate.MaxTokens)) {
		return 0, 0, errDamaged
	}
	return d.end, int(n), nil
}

// tokens finds the tokens of a block.
func (d *segmentDecoder) tokens(chunked bool) error {
	end, count, err := d.extent(chunked)
	if err != nil {
		return err
	}
	pred, toks := d.pred, d.toks[:0]
	missed := 0
	next := d.nextMiss(0, missed)
	for len(toks) != count && pred.At() < end && len(toks) < deflate.MaxTokens {
		if right := right(len(toks), count, next); right > 0 {
			before := len(toks)
			if toks = pred.Follow(toks, right, end); len(toks) == before {
				return errDamaged
			}
			continue
		}
		t, ok := d.fixToken(pred.Next())
		if !ok || t.Len() > end-pred.At() {
			return errDamaged
		}
		missed = 1
		next = d.nextMiss(len(toks)+1, missed)
		toks = append(toks, t)
		pred.Took(t)
	}
	d.toks = toks
	if next >= 0 || count >= 0 && len(toks) != count || count < 0 && pred.At() != end {
		return errDamaged
	}
	return nil
}

// right returns an upper bound on how many tokens after the first n of a block are as
// guessed. The block has count tokens, and miss is the index of the next token that
// differs. A negative number says that there is no such limit.
func right(n, count, miss int) int {
	right := deflate.MaxTokens - n
	if count >= 0 {
		right = min(right, count-n)
	}
	if miss >= 0 {
		right = min(right, miss-n)
	}
	return right
}

// nextMiss reads which token is the next that differs from the guess. It returns -1 if
// there is none.
func (d *segmentDecoder) nextMiss(from, missed int) int {
	if d.dec.bit(&d.m.miss[missed]) == 0 {
		return -1
	}
	return from + int(d.m.gap.get(d.dec))
}

func (d *segmentDecoder) fixToken(guess deflate.Token) (t deflate.Token, ok bool) {
	fix, guessed := fixBoth, 0
	if guess != 0 {
		guessed = 1
		fix = d.m.fix.get(d.dec)
	}
	if fix == fixLiteral {
		return 0, true
	}
	length, dist := 0, 0
	if guess != 0 {
		length, dist = guess.Len(), guess.Dist()
	}
	if fix == fixLength || fix == fixBoth {
		length = d.m.length[guessed].get(d.dec) + 3
	}
	if length > d.end-d.pred.At() {
		return 0, false
	}
	if fix == fixDistance || fix == fixBoth {
		rank := int(d.m.rank[fix].get(d.dec)) - 1
		if rank < 0 {
			dist = int(d.dec.plain(15)) + 1
		} else if dist = d.pred.Ranked(length, rank); dist == 0 {
			return 0, false
		}
	}
	return deflate.Match(length, dist), true
}
