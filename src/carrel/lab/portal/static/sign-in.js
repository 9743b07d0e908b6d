// Invitations. Without this script the code is pasted into a field.
"use strict";

// The code of an invitation comes in the fragment of its link, which is sent to nobody, and goes on in the body of a form.
const invitation = document.querySelector("form[data-invitation]");

function openInvitation() {
  if (location.hash.length < 2) return;
  invitation.elements.code.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname); // neither the history nor a bookmark keeps it
  invitation.requestSubmit();
}

if (invitation) {
  openInvitation();
  addEventListener("hashchange", openInvitation); // the link was opened where this page is already
}
