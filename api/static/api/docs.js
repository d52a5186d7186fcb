SwaggerUIBundle({
  url: document.getElementById("docs").dataset.schema,
  dom_id: "#docs",
  deepLinking: true,
  persistAuthorization: true,
  validatorUrl: null,
});
