// client-go: protobuf bodies for built-in kinds, shared informers, a lease lock, and a custom kind through the dynamic
// client.
package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func clientGo(cfg *rest.Config) {
	binary := *cfg
	binary.ContentType = "application/vnd.kubernetes.protobuf"
	binary.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	cs, err := kubernetes.NewForConfig(&binary)
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	factory := informers.NewSharedInformerFactory(cs, 0)
	seen := make(chan string, 100)
	pods := factory.Core().V1().Pods().Informer()
	pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o interface{}) { seen <- "add " + o.(*corev1.Pod).Name },
		UpdateFunc: func(_, o interface{}) { seen <- "update " + string(o.(*corev1.Pod).Status.Phase) },
		DeleteFunc: func(o interface{}) { seen <- "delete" },
	})
	stop := make(chan struct{})
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	zero := int64(0)
	no := false
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "gp", Labels: map[string]string{"a": "b"}}, Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: &zero, AutomountServiceAccountToken: &no, NodeName: "n1",
		Containers: []corev1.Container{{Name: "c", Image: "i", Env: []corev1.EnvVar{{Name: "A", Value: "b"}}, Ports: []corev1.ContainerPort{{ContainerPort: 80}}}}}}
	p, err := cs.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	must(err)
	fmt.Println("created", p.Name, *p.Spec.TerminationGracePeriodSeconds, *p.Spec.AutomountServiceAccountToken, p.Spec.Containers[0].Env[0].Value, p.Spec.RestartPolicy)
	fmt.Println(<-seen)
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: "Ready", Status: "True", LastTransitionTime: metav1.Now()}}
	_, err = cs.CoreV1().Pods("default").UpdateStatus(ctx, p, metav1.UpdateOptions{})
	must(err)
	fmt.Println(<-seen)
	_, err = cs.CoreV1().Pods("default").Patch(ctx, "gp", types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{})
	must(err)
	fmt.Println(<-seen)
	_, err = cs.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "gs"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	must(err)
	lock, err := resourcelock.New("leases", "default", "lock", cs.CoreV1(), cs.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: "me"})
	must(err)
	must(lock.Create(ctx, resourcelock.LeaderElectionRecord{HolderIdentity: "me", LeaseDurationSeconds: 15, AcquireTime: metav1.Now(), RenewTime: metav1.Now()}))
	rec, _, err := lock.Get(ctx)
	must(err)
	must(lock.Update(ctx, *rec))
	fmt.Println("lease", rec.HolderIdentity)
	must(cs.CoreV1().Pods("default").Delete(ctx, "gp", metav1.DeleteOptions{GracePeriodSeconds: &zero}))
	for e := range seen {
		fmt.Println(e)
		if e == "delete" {
			break
		}
	}
	dyn, err := dynamic.NewForConfig(cfg)
	must(err)
	free := true
	extensions, err := apiextensions.NewForConfig(&binary)
	must(err)
	crd, err := extensions.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "gos.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gos", Kind: "Go"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: &free,
					Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"words":  {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Type: "string"}}},
						"counts": {Type: "object", AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &apiextensionsv1.JSONSchemaProps{Type: "integer"}}},
					},
				}},
			}},
		},
	}, metav1.CreateOptions{})
	must(err)
	properties := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties
	fmt.Println("schema", properties["words"].Items.Schema.Type, properties["counts"].AdditionalProperties.Schema.Type)
	gos := dyn.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gos"}).Namespace("default")
	until(ctx, "the kind is served", func() (bool, error) {
		_, err := gos.List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
	w, err := gos.Watch(ctx, metav1.ListOptions{})
	must(err)
	g, err := gos.Create(ctx, &unstructured.Unstructured{Object: map[string]interface{}{"apiVersion": "example.com/v1", "kind": "Go", "metadata": map[string]interface{}{"name": "g"}, "spec": map[string]interface{}{"n": int64(1)}}}, metav1.CreateOptions{})
	must(err)
	fmt.Println("custom", (<-w.ResultChan()).Type, g.GetGeneration())
	unstructured.SetNestedField(g.Object, "up", "status", "state")
	_, err = gos.UpdateStatus(ctx, g, metav1.UpdateOptions{})
	must(err)
	select {
	case e := <-w.ResultChan():
		fmt.Println("custom", e.Type)
	case <-time.After(time.Minute):
		fmt.Println("FAILED no event")
	}
	close(stop)
}
