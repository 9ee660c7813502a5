package dataroot

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"example.org/slipway/config"
	"example.org/slipway/gear/rootfs"
)

// TestLayerLimits sets each limit of a layer to a different value, by the key that errors name, and
// wants the conversion to use it. It also wants the two sets of defaults to be the same.
func TestLayerLimits(t *testing.T) {
	bounds := reflect.TypeFor[rootfs.Options]()
	var text strings.Builder
	text.WriteString("version: 0.1\nstorage: {inmemory: {}}\ngear:\n")
	for i := range bounds.NumField() {
		key := bounds.Field(i).Tag.Get("limit")
		if key == "" {
			t.Fatalf("%s has no key", bounds.Field(i).Name)
		}
		fmt.Fprintf(&text, "  %s: %d\n", key, 1000+i)
	}
	cfg, _, err := config.Parse(strings.NewReader(text.String()), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := reflect.ValueOf(*layerLimits(&cfg.Gear))
	for i := range bounds.NumField() {
		if got.Field(i).Int() != int64(1000+i) {
			t.Errorf("gear.%s sets %s to %d", bounds.Field(i).Tag.Get("limit"), bounds.Field(i).Name, got.Field(i).Int())
		}
	}
	cfg, _, err = config.Parse(strings.NewReader("version: 0.1\nstorage: {inmemory: {}}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if usual := rootfs.Defaults(); *layerLimits(&cfg.Gear) != usual {
		t.Errorf("got %+v without configuration, and the package has %+v", *layerLimits(&cfg.Gear), usual)
	}
}
