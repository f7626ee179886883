declare module "idiomorph/htmx";
declare module "*.css";
