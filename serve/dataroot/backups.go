package dataroot

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/registry/catalog/snapshot"
)

// lastBackup exports when the last backup was completed. The catalogue knows it, whichever
// process made the backup.
type lastBackup struct {
	r    *Root
	desc *prometheus.Desc
}

func newLastBackup(r *Root) prometheus.Collector {
	return &lastBackup{r, prometheus.NewDesc("slipway_backup_last_success_timestamp_seconds", "When the last backup was completed; 0: never.", nil, nil)}
}

// Describe implements prometheus.Collector.
func (c *lastBackup) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c *lastBackup) Collect(ch chan<- prometheus.Metric) {
	const within = 5 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	at, err := snapshot.Last(ctx, c.r.Catalog.DB)
	if err != nil { // the catalogue is away; an old value would be worse than none
		return
	}
	seconds := 0.0
	if !at.IsZero() {
		seconds = float64(at.UnixMilli()) / 1000
	}
	ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, seconds)
}
