// controller-runtime: a manager with leader election runs an operator for a custom kind, Fleet. A Fleet owns a service
// and as many pods as it has boats; the operator creates, watches and patches them, keeps a finalizer on the Fleet and
// reports how many boats are afloat. A second client plays the user and the kubelet.
package main

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

var fleets = schema.GroupVersion{Group: "harbour.example.com", Version: "v1"}

type Fleet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              FleetSpec   `json:"spec,omitempty"`
	Status            FleetStatus `json:"status,omitempty"`
}

type FleetSpec struct {
	Boats int32  `json:"boats"`
	Paint string `json:"paint,omitempty"`
}

type FleetStatus struct {
	Afloat     int32              `json:"afloat,omitempty"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

type FleetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Fleet `json:"items"`
}

func (in *Fleet) DeepCopyObject() runtime.Object {
	out := *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Status.Conditions = append([]metav1.Condition(nil), in.Status.Conditions...)
	return &out
}

func (in *FleetList) DeepCopyObject() runtime.Object {
	out := *in
	out.Items = make([]Fleet, len(in.Items))
	for i := range in.Items {
		out.Items[i] = *in.Items[i].DeepCopyObject().(*Fleet)
	}
	return &out
}

func definition() *apiextensionsv1.CustomResourceDefinition {
	free := true
	least := 0.0
	status := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &free}
	spec := apiextensionsv1.JSONSchemaProps{
		Type:     "object",
		Required: []string{"boats"},
		Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"boats": {Type: "integer", Format: "int32", Minimum: &least},
			"paint": {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"white"`)}},
		},
		XValidations: apiextensionsv1.ValidationRules{{Rule: "self.boats < 50", Message: "the harbour is full"}},
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "fleets.harbour.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: fleets.Group,
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "fleets", Singular: "fleet", Kind: "Fleet", ListKind: "FleetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type:       "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": spec, "status": status},
				}},
			}},
		},
	}
}

type operator struct {
	client.Client
	moored chan string
}

const mooring = "harbour.example.com/mooring"

func (o *operator) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	fleet := &Fleet{}
	if err := o.Get(ctx, request.NamespacedName, fleet); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !fleet.DeletionTimestamp.IsZero() {
		if controllerutil.RemoveFinalizer(fleet, mooring) {
			if err := o.Update(ctx, fleet); err != nil {
				return ctrl.Result{}, err
			}
			o.moored <- fleet.Name
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(fleet, mooring) {
		return ctrl.Result{}, o.Update(ctx, fleet)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fleet.Name, Namespace: fleet.Namespace}}
	if _, err := controllerutil.CreateOrUpdate(ctx, o.Client, service, func() error {
		service.Spec.Selector = map[string]string{"fleet": fleet.Name}
		service.Spec.Ports = []corev1.ServicePort{{Name: "radio", Port: 156, Protocol: corev1.ProtocolTCP}}
		return controllerutil.SetControllerReference(fleet, service, o.Scheme())
	}); err != nil {
		return ctrl.Result{}, err
	}
	afloat := int32(0)
	for number := int32(0); number < fleet.Spec.Boats; number++ {
		boat, err := o.boat(ctx, fleet, number)
		if err != nil {
			return ctrl.Result{}, err
		}
		if boat.Status.Phase == corev1.PodRunning {
			afloat++
		}
	}
	before := fleet.DeepCopyObject().(*Fleet)
	fleet.Status.Afloat = afloat
	state := metav1.ConditionFalse
	if afloat == fleet.Spec.Boats {
		state = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&fleet.Status.Conditions, metav1.Condition{Type: "Ready", Status: state, Reason: "Counted", ObservedGeneration: fleet.Generation})
	if equality.Semantic.DeepEqual(before.Status, fleet.Status) {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, o.Status().Patch(ctx, fleet, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// boat creates the pod of that number, or paints it anew with a patch.
func (o *operator) boat(ctx context.Context, fleet *Fleet, number int32) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	name := types.NamespacedName{Namespace: fleet.Namespace, Name: fmt.Sprintf("%s-%d", fleet.Name, number)}
	err := o.Get(ctx, name, pod)
	if apierrors.IsNotFound(err) {
		zero := int64(0)
		pod = &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name.Name, Namespace: name.Namespace, Labels: map[string]string{"fleet": fleet.Name, "paint": fleet.Spec.Paint}},
			Spec: corev1.PodSpec{
				TerminationGracePeriodSeconds: &zero,
				Containers:                    []corev1.Container{{Name: "boat", Image: "none", Env: []corev1.EnvVar{{Name: "NUMBER", Value: fmt.Sprint(number)}}}},
			},
		}
		if err := controllerutil.SetControllerReference(fleet, pod, o.Scheme()); err != nil {
			return nil, err
		}
		err = o.Create(ctx, pod)
		if apierrors.IsAlreadyExists(err) { // the cache had not seen our own write
			err = nil
		}
		return pod, err
	}
	if err == nil && pod.Labels["paint"] != fleet.Spec.Paint {
		before := pod.DeepCopy()
		pod.Labels["paint"] = fleet.Spec.Paint
		err = o.Patch(ctx, pod, client.StrategicMergeFrom(before))
	}
	return pod, err
}

func controllerRuntime(config *rest.Config) {
	ctrl.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	scheme := runtime.NewScheme()
	must(corev1.AddToScheme(scheme))
	must(coordinationv1.AddToScheme(scheme))
	must(apiextensionsv1.AddToScheme(scheme))
	scheme.AddKnownTypes(fleets, &Fleet{}, &FleetList{})
	metav1.AddToGroupVersion(scheme, fleets)

	user, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	must(err)
	crd := definition()
	must(user.Create(ctx, crd))
	until(ctx, "the kind is served and told of", func() (bool, error) {
		return user.List(ctx, &FleetList{}) == nil, nil
	})

	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: "harbour", LeaderElectionNamespace: "default", LeaderElectionReleaseOnCancel: true,
	})
	must(err)
	moored := make(chan string, 1)
	must(ctrl.NewControllerManagedBy(manager).For(&Fleet{}).Owns(&corev1.Pod{}).Owns(&corev1.Service{}).
		Complete(&operator{Client: manager.GetClient(), moored: moored}))
	managing, stop := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- manager.Start(managing) }()
	<-manager.Elected()
	lease := &coordinationv1.Lease{}
	must(user.Get(ctx, types.NamespacedName{Namespace: "default", Name: "harbour"}, lease))
	fmt.Println("elected", lease.Spec.HolderIdentity != nil, lease.Spec.RenewTime != nil)

	play(ctx, user, moored)

	stop()
	must(<-ended)
	must(user.Get(ctx, types.NamespacedName{Namespace: "default", Name: "harbour"}, lease))
	fmt.Printf("lease released by %q\n", *lease.Spec.HolderIdentity)
	must(user.Delete(ctx, crd))
}

// play is what a user and a kubelet do while the operator runs.
func play(ctx context.Context, user client.WithWatch, moored chan string) {
	here := client.InNamespace("default")
	watch, err := user.Watch(ctx, &FleetList{}, here)
	must(err)
	fleet := &Fleet{ObjectMeta: metav1.ObjectMeta{Name: "ours", Namespace: "default"}, Spec: FleetSpec{Boats: 2}}
	must(user.Create(ctx, fleet))
	fmt.Println("fleet", fleet.Spec.Boats, fleet.Spec.Paint, fleet.Generation)
	err = user.Create(ctx, &Fleet{ObjectMeta: metav1.ObjectMeta{Name: "big", Namespace: "default"}, Spec: FleetSpec{Boats: 99}})
	fmt.Println("too big:", apierrors.IsInvalid(err), strings.Contains(fmt.Sprint(err), "the harbour is full"))
	fmt.Println("again:", apierrors.IsAlreadyExists(user.Create(ctx, &Fleet{ObjectMeta: metav1.ObjectMeta{Name: "ours", Namespace: "default"}})))

	pods := &corev1.PodList{}
	until(ctx, "the operator made the boats", func() (bool, error) {
		err := user.List(ctx, pods, here, client.MatchingLabels{"fleet": "ours"})
		return len(pods.Items) == 2, err
	})
	for i := range pods.Items {
		pod := &pods.Items[i]
		fmt.Println("pod", pod.Name, *pod.Spec.TerminationGracePeriodSeconds, pod.Spec.Containers[0].Env[0].Value, metav1.GetControllerOf(pod).Kind, pod.Spec.RestartPolicy)
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		must(user.Status().Update(ctx, pod))
	}
	service := &corev1.Service{}
	must(user.Get(ctx, client.ObjectKeyFromObject(fleet), service))
	fmt.Println("service", service.Spec.Ports[0].TargetPort.IntValue(), service.Spec.Type, service.Spec.ClusterIP != "")

	seen := map[string]bool{}
	for event := range watch.ResultChan() {
		changed := event.Object.(*Fleet)
		seen[string(event.Type)] = true
		if changed.Status.Afloat == 2 {
			fmt.Println("afloat", meta.IsStatusConditionTrue(changed.Status.Conditions, "Ready"), controllerutil.ContainsFinalizer(changed, mooring))
			break
		}
	}
	fmt.Println("watched", words(seen))

	must(user.Patch(ctx, fleet, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/paint","value":"red"}]`))))
	until(ctx, "the boats are painted", func() (bool, error) {
		err := user.List(ctx, pods, here, client.MatchingLabels{"paint": "red"})
		return len(pods.Items) == 2, err
	})
	stale := pods.Items[0].DeepCopy()
	must(user.Patch(ctx, &pods.Items[0], client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"log":"1"}}}`))))
	stale.Annotations = map[string]string{"log": "2"}
	fmt.Println("stale:", apierrors.IsConflict(user.Update(ctx, stale)))

	settings := corev1ac.ConfigMap("chart", "default").WithData(map[string]string{"depth": "4"})
	must(user.Apply(ctx, settings, client.FieldOwner("captain")))
	theirs := corev1ac.ConfigMap("chart", "default").WithData(map[string]string{"depth": "5"})
	fmt.Println("theirs:", apierrors.IsConflict(user.Apply(ctx, theirs, client.FieldOwner("mate"))))
	must(user.Apply(ctx, theirs, client.FieldOwner("mate"), client.ForceOwnership))
	chart := &corev1.ConfigMap{}
	must(user.Get(ctx, types.NamespacedName{Namespace: "default", Name: "chart"}, chart))
	fmt.Println("chart", chart.Data["depth"], len(chart.ManagedFields))

	must(user.Delete(ctx, fleet, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	fmt.Println("moored", <-moored)
	until(ctx, "the fleet is gone", func() (bool, error) {
		err := user.Get(ctx, client.ObjectKeyFromObject(fleet), fleet)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	must(user.DeleteAllOf(ctx, &corev1.Pod{}, here, client.MatchingLabels{"fleet": "ours"}, client.GracePeriodSeconds(0)))
	must(user.List(ctx, pods, here, client.MatchingLabels{"fleet": "ours"}))
	fmt.Println("left", len(pods.Items))
	watch.Stop()
}

func until(ctx context.Context, what string, reached func() (bool, error)) {
	if err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) { return reached() }); err != nil {
		must(fmt.Errorf("waiting until %s: %w", what, err))
	}
}

func words(set map[string]bool) string {
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	sort.Strings(names)
	return strings.Join(names, " ")
}
