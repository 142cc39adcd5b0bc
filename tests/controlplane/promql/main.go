// Reads queries as Prometheus does, and says which metrics and labels each of them names.
//
// A JSON array of texts comes in; an array of {error, metrics: {name: [label]}, by: [label]} goes out.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

type told struct {
	Error   string              `json:"error,omitempty"`
	Metrics map[string][]string `json:"metrics"`
	By      []string            `json:"by"`
}

func main() {
	queries := []string{}
	if err := json.NewDecoder(os.Stdin).Decode(&queries); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	answers := []told{}
	for _, query := range queries {
		answers = append(answers, read(query))
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(query string) told {
	answer := told{Metrics: map[string][]string{}, By: []string{}}
	parsed, err := parser.ParseExpr(query)
	if err != nil {
		answer.Error = err.Error()
		return answer
	}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		switch one := node.(type) {
		case *parser.VectorSelector:
			names := answer.Metrics[one.Name]
			for _, matcher := range one.LabelMatchers {
				if matcher.Name != labels.MetricName {
					names = append(names, matcher.Name)
				}
			}
			answer.Metrics[one.Name] = append([]string{}, names...)
		case *parser.AggregateExpr:
			answer.By = append(answer.By, one.Grouping...)
		}
		return nil
	})
	return answer
}
