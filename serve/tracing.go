package serve

import (
	"context"
	"fmt"
	"net/http"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"example.org/slipway/config"
)

// startTracing sets up OpenTelemetry if it is configured. Otherwise the provider is nil,
// and tracing costs nothing. The provider's Shutdown sends the remaining spans.
func startTracing(ctx context.Context, cfg *config.Config) (*sdktrace.TracerProvider, error) {
	if !cfg.Tracing.Enabled {
		return nil, nil
	}
	t := &cfg.Tracing
	opts := []otlptracehttp.Option{otlptracehttp.WithEndpointURL(t.Endpoint)}
	if len(t.Headers) > 0 {
		headers := map[string]string{}
		for k, v := range t.Headers {
			headers[k] = v.Reveal()
		}
		opts = append(opts, otlptracehttp.WithHeaders(headers))
	}
	if t.Timeout > 0 {
		opts = append(opts, otlptracehttp.WithTimeout(t.Timeout))
	}
	exp, err := otlptracehttp.New(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("set up tracing: %w", err)
	}
	return sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exp),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(t.SampleRatio))),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", t.ServiceName)))), nil
}

// traced wraps the handler if tracing is on.
func traced(provider *sdktrace.TracerProvider, h http.Handler) http.Handler {
	if provider == nil {
		return h
	}
	return otelhttp.NewHandler(h, "registry", otelhttp.WithTracerProvider(provider), otelhttp.WithPropagators(propagation.TraceContext{}))
}
