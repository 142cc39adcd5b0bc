// Renders a chart as `helm template` does: Helm's own loader, value rules and engine, without its client.
//
// helm CHART NAMESPACE VALUES.json
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

func main() {
	if err := render(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func render(folder, namespace, values string) error {
	chart, err := loader.Load(folder)
	if err != nil {
		return err
	}
	given := map[string]interface{}{}
	content, err := os.ReadFile(values)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, &given); err != nil {
		return err
	}
	release := chartutil.ReleaseOptions{Name: "shoal", Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, given, release, chartutil.DefaultCapabilities)
	if err != nil {
		return err
	}
	made, err := engine.Render(chart, all)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(made))
	for name := range made {
		if !strings.HasPrefix(path.Base(name), "_") && path.Ext(name) == ".yaml" {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	for _, name := range names {
		if strings.TrimSpace(made[name]) != "" {
			fmt.Printf("---\n# Source: %s\n%s\n", name, made[name])
		}
	}
	return nil
}
