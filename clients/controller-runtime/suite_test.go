package main

import (
	"context"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// A suite as kubebuilder scaffolds it, on the cluster of KUBECONFIG instead of binaries: envtest installs the definition and the webhook's
// configuration, whose server is this process.
func TestSuiteOnAnExistingCluster(t *testing.T) {
	existing := true
	env := &envtest.Environment{
		UseExistingCluster: &existing,
		CRDInstallOptions: envtest.CRDInstallOptions{
			CRDs:            []*apiextensionsv1.CustomResourceDefinition{sites()},
			CleanUpAfterUse: true,
		},
		WebhookInstallOptions: envtest.WebhookInstallOptions{
			ValidatingWebhooks: []*admissionv1.ValidatingWebhookConfiguration{polite()},
		},
	}
	config, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	}()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, addToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	options := env.WebhookInstallOptions
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{
			Host: options.LocalServingHost, Port: options.LocalServingPort, CertDir: options.LocalServingCertDir,
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	decoder := admission.NewDecoder(scheme)
	mgr.GetWebhookServer().Register("/validate-site", &admission.Webhook{
		Handler: admission.HandlerFunc(func(_ context.Context, request admission.Request) admission.Response {
			site := &Site{}
			if err := decoder.Decode(request, site); err != nil {
				return admission.Errored(400, err)
			}
			if strings.Contains(site.Spec.Text, "damn") {
				return admission.Denied("a page must be polite")
			}
			return admission.Allowed("")
		}),
	})
	reconciler := &siteReconciler{Client: mgr.GetClient(), recorder: mgr.GetEventRecorder("site-operator")}
	if err := reconciler.setUp(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), patience)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	for mgr.GetWebhookServer().StartedChecker()(nil) != nil {
		select {
		case <-ctx.Done():
			t.Fatal("the webhook server does not start")
		case <-time.After(50 * time.Millisecond):
		}
	}

	api, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "suite"}}); err != nil {
		t.Fatal(err)
	}
	site := func(name, text string) *Site {
		return &Site{ObjectMeta: metav1.ObjectMeta{Namespace: "suite", Name: name}, Spec: SiteSpec{Text: text}}
	}
	if err := api.Create(ctx, site("rude", "damn")); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "must be polite") {
		t.Fatalf("the webhook did not refuse: %v", err)
	}
	home := site("home", "hello")
	if err := api.Create(ctx, home); err != nil {
		t.Fatal(err)
	}
	page := &corev1.ConfigMap{}
	if err := eventually("the page is made", func() (bool, string, error) {
		err := api.Get(ctx, client.ObjectKey{Namespace: "suite", Name: "home-page"}, page)
		return err == nil, "no page", client.IgnoreNotFound(err)
	}); err != nil {
		t.Fatal(err)
	}
	if err := api.Delete(ctx, home); err != nil {
		t.Fatal(err)
	}
	if err := eventually("the site is gone", func() (bool, string, error) {
		err := api.Get(ctx, client.ObjectKeyFromObject(home), home)
		return apierrors.IsNotFound(err), "still there", client.IgnoreNotFound(err)
	}); err != nil {
		t.Fatal(err)
	}
}

// polite names a Service, as a scaffolded configuration does; envtest puts its own address there.
func polite() *admissionv1.ValidatingWebhookConfiguration {
	path, none := "/validate-site", admissionv1.SideEffectClassNone
	return &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "polite"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name:                    "polite.clients.example.com",
			AdmissionReviewVersions: []string{"v1"},
			SideEffects:             &none,
			ClientConfig: admissionv1.WebhookClientConfig{
				Service: &admissionv1.ServiceReference{Namespace: "system", Name: "webhook-service", Path: &path},
			},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
				Rule: admissionv1.Rule{
					APIGroups: []string{groupVersion.Group}, APIVersions: []string{"v1"}, Resources: []string{"sites"},
				},
			}},
		}},
	}
}
