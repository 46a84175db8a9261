package main

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

const finalizer = "clients.example.com/farewell"

// The operator as kubebuilder's users write it: typed objects, CreateOrUpdate, owned children, a finalizer, a status.
type siteReconciler struct {
	client.Client
	recorder events.EventRecorder
}

func (r *siteReconciler) setUp(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&Site{}).
		Owns(&appsv1.Deployment{}).
		Owns(&corev1.ConfigMap{}).
		Named("site").
		Complete(r)
}

func (r *siteReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	site := &Site{}
	if err := r.Get(ctx, request.NamespacedName, site); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !site.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.farewell(ctx, site)
	}
	if controllerutil.AddFinalizer(site, finalizer) {
		if err := r.Update(ctx, site); err != nil {
			return ctrl.Result{}, err
		}
	}
	page := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: site.Namespace, Name: site.Name + "-page"}}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, page, func() error {
		page.Data = map[string]string{"index.html": site.Spec.Text}
		return controllerutil.SetControllerReference(site, page, r.Scheme())
	}); err != nil {
		return ctrl.Result{}, fmt.Errorf("page: %w", err)
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: site.Namespace, Name: site.Name}}
	result, err := controllerutil.CreateOrUpdate(ctx, r.Client, deployment, func() error {
		labels := map[string]string{"site": site.Name}
		deployment.Spec.Replicas = site.Spec.Replicas
		deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
		deployment.Spec.Template.Labels = labels
		// What the server has filled in stays.
		if len(deployment.Spec.Template.Spec.Containers) == 0 {
			deployment.Spec.Template.Spec.Containers = make([]corev1.Container, 1)
		}
		web := &deployment.Spec.Template.Spec.Containers[0]
		web.Name, web.Image = "web", "nginx:1.27"
		web.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}
		return controllerutil.SetControllerReference(site, deployment, r.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("deployment: %w", err)
	}
	if result == controllerutil.OperationResultCreated {
		r.recorder.Eventf(site, deployment, corev1.EventTypeNormal, "Deployed", "Deploy", "made Deployment %s", deployment.Name)
	}
	before := site.DeepCopyObject().(*Site)
	site.Status.ObservedGeneration = site.Generation
	site.Status.ReadyReplicas = deployment.Status.ReadyReplicas
	condition := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Waiting", ObservedGeneration: site.Generation}
	if deployment.Status.ReadyReplicas == *deployment.Spec.Replicas {
		condition.Status, condition.Reason = metav1.ConditionTrue, "AllReady"
	}
	meta.SetStatusCondition(&site.Status.Conditions, condition)
	return ctrl.Result{}, r.Status().Patch(ctx, site, client.MergeFrom(before))
}

// farewell leaves a note of its own: nothing else in the cluster would have made it.
func (r *siteReconciler) farewell(ctx context.Context, site *Site) error {
	if !controllerutil.ContainsFinalizer(site, finalizer) {
		return nil
	}
	note := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: site.Namespace, Name: site.Name + "-gone"}}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, note, func() error { return nil }); err != nil {
		return err
	}
	controllerutil.RemoveFinalizer(site, finalizer)
	return r.Update(ctx, site)
}
