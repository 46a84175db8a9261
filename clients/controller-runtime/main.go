// An operator built with controller-runtime, and a round of its life with typed clients: create, change, delete.
// It needs nothing but KUBECONFIG, and ends with 0 if everything came out as on any Kubernetes.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	patience  = 60 * time.Second
	namespace = "controller-runtime"
)

func main() {
	ctrl.SetLogger(zap.New(zap.UseDevMode(true)))
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "failed:", err)
		os.Exit(1)
	}
	fmt.Println("controller-runtime: create, change and delete came out right")
}

func run(ctx context.Context) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, addToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	api, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	if err := prepare(ctx, api); err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Metrics:                       metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress:        "0",
		LeaderElection:                true,
		LeaderElectionID:              "site-operator",
		LeaderElectionNamespace:       namespace,
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return err
	}
	reconciler := &siteReconciler{Client: mgr.GetClient(), recorder: mgr.GetEventRecorder("site-operator")}
	if err := reconciler.setUp(mgr); err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(running) }()
	round := make(chan error, 1)
	go func() { round <- drive(ctx, api, config) }()
	select {
	case err := <-ended:
		return fmt.Errorf("the manager ended: %w", err)
	case err := <-round:
		if err != nil {
			return err
		}
	}
	stop()
	if err := <-ended; err != nil {
		return fmt.Errorf("the manager did not end in order: %w", err)
	}
	lease := &coordinationv1.Lease{}
	if err := api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "site-operator"}, lease); err != nil {
		return err
	}
	if lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "" {
		return fmt.Errorf("the lease was not released: %s still has it", *lease.Spec.HolderIdentity)
	}
	return nil
}

// sites is the definition of the kind that the operator is for.
func sites() *apiextensionsv1.CustomResourceDefinition {
	preserve := true
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "sites.clients.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: groupVersion.Group,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "sites", Singular: "site", Kind: "Site", ListKind: "SiteList"},
			Scope: apiextensionsv1.NamespaceScoped,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"spec": {Type: "object", Required: []string{"text"}, Properties: map[string]apiextensionsv1.JSONSchemaProps{
							"text":     {Type: "string"},
							"replicas": {Type: "integer", Format: "int32", Default: &apiextensionsv1.JSON{Raw: []byte("2")}},
						}},
						"status": {Type: "object", XPreserveUnknownFields: &preserve},
					},
				}},
			}},
		},
	}
}

func prepare(ctx context.Context, api client.Client) error {
	definition := sites()
	if err := api.Create(ctx, definition); err != nil {
		return fmt.Errorf("definition: %w", err)
	}
	if err := eventually("the definition is established", func() (bool, string, error) {
		if err := api.Get(ctx, client.ObjectKeyFromObject(definition), definition); err != nil {
			return false, "", err
		}
		for _, condition := range definition.Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				return true, "", nil
			}
		}
		return false, fmt.Sprint(definition.Status.Conditions), nil
	}); err != nil {
		return err
	}
	return api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
}

// drive lives one site through, with clients of its own, as a user and the Deployment's controller would.
func drive(ctx context.Context, api client.Client, config *rest.Config) error {
	typed, err := kubernetes.NewForConfig(protobuf(config))
	if err != nil {
		return err
	}
	site := &Site{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "home"}, Spec: SiteSpec{Text: "hello"}}
	if err := api.Create(ctx, site); err != nil {
		return err
	}
	key := client.ObjectKeyFromObject(site)
	deployments, maps := typed.AppsV1().Deployments(namespace), typed.CoreV1().ConfigMaps(namespace)

	var deployment *appsv1.Deployment
	if err := eventually("the Deployment is made", func() (bool, string, error) {
		deployment, err = deployments.Get(ctx, "home", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, err.Error(), nil
		}
		return err == nil, "", err
	}); err != nil {
		return err
	}
	if owner := metav1.GetControllerOf(deployment); owner == nil || owner.UID != site.UID {
		return fmt.Errorf("the Deployment's controller is %v instead of %s", owner, site.UID)
	}
	if *deployment.Spec.Replicas != 2 {
		return fmt.Errorf("the definition's default of 2 replicas became %d", *deployment.Spec.Replicas)
	}
	if err := condition(ctx, api, key, metav1.ConditionFalse, 1); err != nil {
		return err
	}
	if err := becomesReady(ctx, typed, 2); err != nil {
		return err
	}
	if err := condition(ctx, api, key, metav1.ConditionTrue, 1); err != nil {
		return err
	}
	if err := eventually("an event about the site", func() (bool, string, error) {
		selector := fields.Set{"involvedObject.name": "home", "reason": "Deployed"}.String()
		events, err := typed.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			return false, "", err
		}
		return len(events.Items) == 1, fmt.Sprintf("%d events", len(events.Items)), nil
	}); err != nil {
		return err
	}

	// A change: of the page by a patch, of the size by an update.
	patch := []byte(`{"spec":{"text":"changed"}}`)
	if err := api.Patch(ctx, site, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return err
	}
	if err := eventually("the page changes", func() (bool, string, error) {
		page, err := maps.Get(ctx, "home-page", metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		return page.Data["index.html"] == "changed", fmt.Sprint(page.Data), nil
	}); err != nil {
		return err
	}
	three := int32(3)
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := api.Get(ctx, key, site); err != nil {
			return err
		}
		site.Spec.Replicas = &three
		return api.Update(ctx, site)
	}); err != nil {
		return err
	}
	if err := eventually("the Deployment grows", func() (bool, string, error) {
		deployment, err = deployments.Get(ctx, "home", metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		return *deployment.Spec.Replicas == 3 && deployment.Generation == 2, fmt.Sprint(deployment.Spec), nil
	}); err != nil {
		return err
	}
	if err := becomesReady(ctx, typed, 3); err != nil {
		return err
	}
	if err := condition(ctx, api, key, metav1.ConditionTrue, 3); err != nil {
		return err
	}

	// A child that someone deletes comes back.
	page, err := maps.Get(ctx, "home-page", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := maps.Delete(ctx, "home-page", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(page.UID))}); err != nil {
		return err
	}
	if err := eventually("the page comes back", func() (bool, string, error) {
		again, err := maps.Get(ctx, "home-page", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, err.Error(), nil
		}
		return err == nil && again.UID != page.UID, "it is the old one", err
	}); err != nil {
		return err
	}

	if err := api.Delete(ctx, site); err != nil {
		return err
	}
	if err := eventually("site and children go", func() (bool, string, error) {
		err := api.Get(ctx, key, site)
		_, child := deployments.Get(ctx, "home", metav1.GetOptions{})
		_, other := maps.Get(ctx, "home-page", metav1.GetOptions{})
		gone := apierrors.IsNotFound(err) && apierrors.IsNotFound(child) && apierrors.IsNotFound(other)
		return gone, fmt.Sprint(err, child, other), nil
	}); err != nil {
		return err
	}
	if _, err := maps.Get(ctx, "home-gone", metav1.GetOptions{}); err != nil {
		return fmt.Errorf("the finalizer did not run: %w", err)
	}
	return nil
}

// protobuf makes client-go's typed clients speak protobuf, as those of Kubernetes' own programs do.
func protobuf(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	return config
}

// becomesReady plays the Deployment's controller: there may be none.
func becomesReady(ctx context.Context, typed kubernetes.Interface, replicas int32) error {
	deployments := typed.AppsV1().Deployments(namespace)
	return eventually("the Deployment is ready", func() (bool, string, error) {
		deployment, err := deployments.Get(ctx, "home", metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		deployment.Status = appsv1.DeploymentStatus{
			ObservedGeneration: deployment.Generation, Replicas: replicas, UpdatedReplicas: replicas,
			ReadyReplicas: replicas, AvailableReplicas: replicas,
		}
		_, err = deployments.UpdateStatus(ctx, deployment, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			return false, err.Error(), nil
		}
		return err == nil, "", err
	})
}

func condition(ctx context.Context, api client.Client, key types.NamespacedName, status metav1.ConditionStatus, generation int64) error {
	return eventually(fmt.Sprintf("Ready is %s for generation %d", status, generation), func() (bool, string, error) {
		site := &Site{}
		if err := api.Get(ctx, key, site); err != nil {
			return false, "", err
		}
		ready := meta.FindStatusCondition(site.Status.Conditions, "Ready")
		seen := fmt.Sprintf("generation %d, status %+v", site.Generation, site.Status)
		// Its own finalizer moves the metadata only: the generation counts changes of the spec.
		return ready != nil && ready.Status == status && site.Status.ObservedGeneration == generation && site.Generation == generation, seen, nil
	})
}

// eventually waits for a state, and names the last one seen when it does not come.
func eventually(what string, check func() (bool, string, error)) error {
	last := ""
	err := wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		done, seen, err := check()
		last = seen
		return done, err
	})
	if err != nil {
		return fmt.Errorf("%s: %w; last seen: %s", what, err, last)
	}
	fmt.Println("  ", what)
	return nil
}
