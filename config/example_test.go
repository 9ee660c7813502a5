package config_test

import (
	"fmt"
	"strings"

	"example.org/slipway/config"
)

func ExampleParse() {
	file := `version: 0.1
storage:
  root: /srv/registry
  gc: {grace: 2d}
http:
  secret: ${env:HTTP_SECRET}
redis: {addr: "redis:6379"}
`
	c, warnings, err := config.Parse(strings.NewReader(file), &config.Options{
		Name: "config.yml",
		Env:  []string{"HTTP_SECRET=not shown", "SLIPWAY_LOG_LEVEL=warn"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c.Storage.FileSystem.RootDirectory, c.Storage.GC.Grace, c.Log.Level, c.HTTP.Secret)
	for _, w := range warnings {
		fmt.Println(w)
	}
	// Output:
	// /srv/registry 48h0m0s warn ******
	// config.yml:7: redis: ignored: no Redis is needed; what Distribution keeps there is kept in memory
}

func ExampleProblems() {
	_, _, err := config.Parse(strings.NewReader("version: 0.1\nhttp: {adr: x}\nlog: {level: loud}\n"), nil)
	fmt.Println(err)
	// Output:
	// config:2: unknown key http.adr (did you mean http.addr?)
	// config:3: log.level: must be error, warn, info or debug
}
