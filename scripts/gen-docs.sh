#!/usr/bin/env bash
# Regenerates the documents that are made from the program.
#   scripts/gen-docs.sh           writes docs/config.md, docs/agent-config.md, docs/reference, and what
#                                 the schema of the chart's values says of both configurations
#   scripts/gen-docs.sh --check   fails if the existing files are not current
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export GOFLAGS=${GOFLAGS:--buildvcs=false}

# config_md prints docs/config.md.
config_md() {
	cat <<-'MD'
		<!-- Made by scripts/gen-docs.sh. Change that, or the doc tags in package config. -->
		# Configuration

		`slipway serve` runs without a configuration: it then keeps its data in
		`./slipway-data`, serves on 127.0.0.1:5000, and has metrics and health on
		127.0.0.1:5001. `--config FILE` names a YAML file. With a file, the defaults
		below apply: the data directory is `/var/lib/registry`, and there are no metrics. The
		administration commands (`gc`, `fsck`, `backup`, `restore`, `retention`, `import`,
		`cache`, `mirror`, `catalog move`) take the same `--config` or `--root`.

		The shape is that of Distribution's `config.yml`, and such a file works as it is.
		A key of Distribution's that has no meaning here causes a warning. It is an error if
		ignoring the key would change what clients reach (a storage driver, `middleware`,
		`policy`). Any other unknown key is an error; the message has its line and the key that
		was probably meant.

		```text
		slipway config check FILE      checks FILE together with the environment variables that
		                               override it, and opens the files that it names
		                               (certificates, htpasswd)
		slipway config show FILE       prints the configuration in effect, without secrets
		slipway config example         prints the file below
		slipway config schema          prints a JSON Schema for editors
		```

		## Where a value comes from

		A value comes from the first of these that has it:

		1. a flag: `--root`, `--addr`, `--debug-addr`
		2. an environment variable `SLIPWAY_A_B`, such as `SLIPWAY_HTTP_ADDR`
		3. an environment variable `REGISTRY_A_B`, as Distribution has them
		4. for `tracing` only: the `OTEL_` variables of OpenTelemetry
		5. the file
		6. the default

		In the name of a variable, levels are joined by `_`, and an entry of a list is named by
		its number: `SLIPWAY_HTTP_TLS_CLIENTCAS_0`. A variable can hold a whole list or section
		as YAML: `SLIPWAY_STORAGE_IMMUTABLE_TAGS='[{tags: [v1]}]'`.

		## How values are written

		- A duration as in Go, and with days: `90s`, `1h30m`, `7d`.
		- A size as a number of bytes or with a unit: `64MiB`. `k`, `m`, `g`, `t` and `kb`,
		  `mb`, `gb`, `tb` are powers of 1024, as in Distribution.
		- `${file:/run/secrets/x}` in a text stands for the content of that file without
		  its last line break, `${env:NAME}` for an environment variable.

		## When a change takes effect

		The rules in auth.access and in replication, the htpasswd file, the certificate and its
		key, and the client authorities are read again when they change. Webhooks that were added
		at the page are not in the configuration. Everything else needs a restart.

		Complete files for common cases are in [deploy/examples](../deploy/examples);
		[operating.md](operating.md) explains them.

		## Every key, its default and meaning
	MD
	printf '\n```yaml\n'
	"$work/slipway" config example
	printf '```\n'
}

# agent_config_md prints docs/agent-config.md.
agent_config_md() {
	cat <<-'MD'
		<!-- Made by scripts/gen-docs.sh. Change that, or the doc tags in package config. -->
		# Configuration of the node agent

		`slipway agent` runs without a configuration: it then keeps its data in
		`/var/lib/slipway-agent` and reaches registries under the names in images. `--config
		FILE` names a YAML file that starts from the defaults below; `--root` and `--address`
		override it. `slipway mount`, `run`, `profile` and the other commands that call an
		agent find it by the same flags. Values are written as in [config.md](config.md), also
		`${file:...}` and `${env:...}`; environment variables do not override the file.

		An unknown key is an error with its line and the key that was probably meant. A change
		takes effect with a restart of the agent, which no container notices.
		[nodes.md](nodes.md) explains what the sections are for.

		## Every key, its default and meaning
	MD
	printf '\n```yaml\n'
	"$work/slipway" agent config
	printf '```\n'
}

# The pages of docs/reference.
cli_md() { "$work/reference" cli "$work/slipway"; }
metrics_md() { "$work/reference" metrics .; }
events_md() { "$work/reference" events; }

# The schema of the chart's values, which includes the keys of both configurations.
values_schema() { "$work/reference" values deploy/helm/slipway/values.schema.json; }

# made NAME COMMAND writes docs/NAME, or with --check compares it.
made() {
	if [ -z "$check" ]; then
		"$2" >"docs/$1.new"
		mv "docs/$1.new" "docs/$1"
	elif ! diff -u "docs/$1" <("$2") >&2; then
		echo "docs/$1 is not current: run scripts/gen-docs.sh" >&2
		exit 1
	fi
}

case ${1:-} in
'') check= ;;
--check) check=yes ;;
*)
	echo "usage: scripts/gen-docs.sh [--check]" >&2
	exit 2
	;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# With -trimpath as in the Makefile, so that what make build has compiled is used.
CGO_ENABLED=0 go build -trimpath -o "$work/slipway" ./cmd/slipway
(cd integration && go build -o "$work/reference" ./cmd/reference)
mkdir -p docs/reference
made config.md config_md
made agent-config.md agent_config_md
made reference/cli.md cli_md
made reference/metrics.md metrics_md
made reference/events.md events_md
made ../deploy/helm/slipway/values.schema.json values_schema
