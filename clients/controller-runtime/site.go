package main

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var groupVersion = schema.GroupVersion{Group: "clients.example.com", Version: "v1"}

// Site asks for a Deployment that serves a page from a ConfigMap.
type Site struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   SiteSpec   `json:"spec"`
	Status SiteStatus `json:"status,omitempty"`
}

// SiteSpec is what a user wants.
type SiteSpec struct {
	Text     string `json:"text"`
	Replicas *int32 `json:"replicas,omitempty"`
}

// SiteStatus is what the operator saw.
type SiteStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	ReadyReplicas      int32              `json:"readyReplicas,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// SiteList is a list of sites.
type SiteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Site `json:"items"`
}

func (in *Site) copyInto(out *Site) {
	*out = *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	if in.Spec.Replicas != nil {
		replicas := *in.Spec.Replicas
		out.Spec.Replicas = &replicas
	}
	if in.Status.Conditions != nil {
		out.Status.Conditions = make([]metav1.Condition, len(in.Status.Conditions))
		for i := range in.Status.Conditions {
			in.Status.Conditions[i].DeepCopyInto(&out.Status.Conditions[i])
		}
	}
}

// DeepCopyObject copies the site.
func (in *Site) DeepCopyObject() runtime.Object {
	out := &Site{}
	in.copyInto(out)
	return out
}

// DeepCopyObject copies the list.
func (in *SiteList) DeepCopyObject() runtime.Object {
	out := &SiteList{TypeMeta: in.TypeMeta, Items: make([]Site, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].copyInto(&out.Items[i])
	}
	return out
}

func addToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(groupVersion, &Site{}, &SiteList{})
	metav1.AddToGroupVersion(scheme, groupVersion)
	return nil
}
