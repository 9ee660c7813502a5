package analyze

import (
	"fmt"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// table1 makes Table 1 of FAST'18, "Characteristics of studied data centers": days,
// requests, bytes in and out, images pushed and pulled. Bytes in are the bytes of PUTs
// and bytes out the bytes of GETs, because only then do they agree with the paper's own
// numbers.
func table1() Plugin {
	return Plugin{
		Figures: []Figure{{
			ID: "table1", Title: "Table 1: the zones",
			Definition: "Days: those in UTC with at least one request. Requests: all, with pings, which are also counted by themselves. " +
				"Ingress: the sum of the sizes of PUT (layers and manifests), and of POST with a whole layer, with a status below 400; " +
				"of a PUT that ends an upload and has no size, that of the upload's PATCHes. " +
				"Egress: the sum of the sizes of GET. " +
				"Images pushed and pulled: PUT and GET of a manifest with a status below 400. Clients and servers: how many different ones there are.",
		}},
		New: func(store.Zone, *Options) Analysis { return &zoneTotals{open: map[store.Symbol]float64{}} },
	}
}

type zoneTotals struct {
	cal              calendar
	days, lastDay    int64
	requests, pings  int64
	methods          [store.DELETE + 1]int64
	in, out, patched float64 // bytes: exact up to 9 PB, and no overflow beyond
	// open holds how many bytes have come by PATCH for each upload that is under way.
	open                  map[store.Symbol]float64
	unknownIn, unknownOut int64
	pushed, pulled        int64
	layers                int64
	clients, hosts        symbolSet
}

func (z *zoneTotals) Columns() store.Columns {
	return store.ColMethod | store.ColKind | store.ColStatus | store.ColSize | store.ColClient | store.ColHost | store.ColRef
}

func (z *zoneTotals) Add(b *store.Batch) {
	for i, t := range b.Time {
		t, _, _ = z.cal.next(t)
		if day := floorDiv(t, microDay); z.days == 0 || day != z.lastDay {
			z.days, z.lastDay = z.days+1, day
		}
		z.requests++
		if b.Kind[i] == trace.Ping {
			z.pings++
		}
		m := b.Method[i]
		z.methods[m]++
		if b.Client[i] != store.None {
			z.clients.add(b.Client[i])
		}
		if b.Host[i] != store.None {
			z.hosts.add(b.Host[i])
		}
		z.bytes(b, i)
		switch {
		case manifestGet(b, i):
			z.pulled++
		case manifestPut(b, i):
			z.pushed++
		case b.Status[i] != 206 && b.Size[i] > 0 && layerGet(b, i):
			z.layers++
		}
	}
}

// maxOpen bounds the uploads whose PATCHes are remembered, because uploads of a trace
// need not end.
const maxOpen = 1 << 20

// bytes counts the bytes that were moved. A ping has no content, so nothing is lost if a
// source lacks its size.
func (z *zoneTotals) bytes(b *store.Batch, i int) {
	m, size := b.Method[i], b.Size[i]
	known := size >= 0
	if m == store.PUT && b.Kind[i] == trace.Upload {
		if before := z.open[b.Ref[i]]; !known && before > 0 {
			size, known = int64(before), true
		}
		delete(z.open, b.Ref[i])
	}
	switch {
	case m == store.GET && known:
		z.out += float64(size)
	case m == store.GET && b.Kind[i] != trace.Ping:
		z.unknownOut++
	case b.Push(i) && !succeeded(b.Status[i]): // a refused push stored nothing
	case b.Push(i) && known:
		z.in += float64(size)
	case b.Push(i):
		z.unknownIn++
	case m == store.PATCH && known:
		z.patched += float64(size)
		if b.Kind[i] == trace.Upload && succeeded(b.Status[i]) && len(z.open) < maxOpen {
			z.open[b.Ref[i]] += float64(size)
		}
	}
}

func (z *zoneTotals) Result() []Result {
	r := Result{Requests: z.requests, Unknown: z.unknownIn + z.unknownOut}
	r.count("days", z.days)
	r.count("requests", z.requests)
	if z.unknownIn == 0 || z.in > 0 {
		r.add("ingress", Bytes, z.in)
	}
	if gets := z.methods[store.GET] - z.pings; gets <= 0 || z.unknownOut < gets {
		r.add("egress", Bytes, z.out)
	}
	r.count("images pushed", z.pushed)
	r.count("images pulled", z.pulled)
	r.count("clients", z.clients.n)
	r.count("servers", z.hosts.n)
	r.count("pings", z.pings)
	for m := store.GET; m <= store.DELETE; m++ {
		r.count(m.String(), z.methods[m])
	}
	r.count("other methods", z.methods[store.OtherMethod])
	r.count("layer GETs with content", z.layers)
	if z.patched > 0 {
		r.add("bytes of PATCH", Bytes, z.patched)
	}
	if z.unknownIn+z.unknownOut > 0 {
		r.note(fmt.Sprintf("The source does not have the sizes of %d PUT and %d GET: ingress and egress lack them.", z.unknownIn, z.unknownOut))
	}
	if z.clients.n == 0 {
		r.note("The source does not tell the clients.")
	}
	if z.cal.absent > 0 {
		r.note(fmt.Sprintf("%s between the first and the last request without any.", plural(z.cal.absent, "day", "days")))
	}
	return []Result{r}
}
