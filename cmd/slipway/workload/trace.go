package workload

import "github.com/spf13/cobra"

func traceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Record, import, generate, analyse, simulate and replay requests to a registry",
		Example: `  slipway trace import access.log -o store
  slipway trace analyze store -o report`,
		Long: `A trace is a record of the requests to a registry: which client wanted what, when, how large
it was and how long it took. These commands read the logs of registries into a store of
Parquet files, describe the workload, and try out registries and caches with it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(traceImportCommand(), traceInfoCommand(), traceCutCommand(), traceAnonymiseCommand(), traceRecordCommand(),
		traceAnalyzeCommand(), traceSimulateCommand(), traceGenerateCommand(),
		traceReplayCommand(), traceWorkerCommand(), traceReportCommand(), traceCompareCommand())
	return cmd
}
